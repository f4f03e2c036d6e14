// Brings every element of class "explorer" to life from the JSON inside it. No other library.
// explorer_data.js, explorer_globe.js and explorer_chart.js come before it, in one function.

const SECONDS = 9;            // a run plays from start to end in this time
const STILL_SECONDS = 0.5;    // per stop, where the reader asked for reduced motion
const HOME = { yaw: 0.7, pitch: 0.45, zoom: 1 };

function start(root) {
  const data = read(root), find = (query) => root.querySelector(query);
  const slider = find("input[type='range']"), button = find(".play"), now = find(".now");
  const state = { position: 0, time: data.times[0], view: { ...HOME }, colour: "plain",
    trails: false, ghost: false, follow: null, playing: false };
  const panels = [...root.querySelectorAll(".panel")].map((element) => ({
    element, index: +element.dataset.index, canvas: element.querySelector("canvas"),
    readout: element.querySelector(".readout") }));
  const charts = [...root.querySelectorAll(".chart")].map((element) => ({
    key: element.dataset.key, canvas: element.querySelector("canvas"), log: false,
    box: element.querySelector("input") }));
  let waiting = false;

  function readout(panel) {
    const curve = data.curves[panel.index], parts = [];
    const value = (line, digits = 4) => format(pick(line.v, place(line.t, state.time)), digits);
    parts.push(`E ${value(curve.energy)}`);
    if (curve.slope) parts.push(`G² ${value(curve.slope, 3)}`, `defect rate ${value(curve.defect, 3)}`);
    const colour = data.colours.find((c) => c.key === state.colour);
    if (state.follow !== null && state.follow < curve.n && colour) {
      const s = shade(data, colour, panel.index, state.follow, state.position);
      const least = colour.floor && s === 0 && colour.high > 0 ? "≤ " : "";
      parts.push(`#${curve.tokens[state.follow]}: ${least}${format(scaleValue(colour, s), 3)}`);
    }
    panel.readout.textContent = parts.join(" · ");
  }

  function draw() {
    waiting = false;
    for (const panel of panels) { drawGlobe(data, state, panel); readout(panel); }
    for (const chart of charts) drawChart(data, state, chart);
  }

  function refresh() {
    if (!waiting) { waiting = true; requestAnimationFrame(draw); }
  }

  function moveTo(position) {
    state.position = clip(position, 0, data.times.length - 1);
    state.time = pick(data.times, state.position);
    slider.value = String(Math.round(state.position));
    const text = `t = ${format(state.time)}`;
    slider.setAttribute("aria-valuetext", text);
    now.textContent = text;
    refresh();
  }

  function play(on) {
    const last = data.times.length - 1;
    state.playing = on && last > 0;
    button.textContent = state.playing ? "❚❚ Pause" : "▶ Play";
    if (!state.playing) return;
    if (state.position >= last) moveTo(0);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const span = data.times[last] - data.times[0];
    const run = {};
    state.run = run;
    let before = null;
    const tick = (clock) => {
      if (!state.playing || state.run !== run) return;
      before ??= clock;
      const passed = (clock - before) / 1000;
      if (!still) {
        before = clock;
        moveTo(place(data.times, state.time + (Math.min(passed, 0.1) / SECONDS) * span));
      } else if (passed >= STILL_SECONDS) {
        before = clock;
        moveTo(Math.floor(state.position) + 1);
      }
      if (state.position >= last) play(false); else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  function follow(token) {
    state.follow = token;
    find(".follow").value = token === null ? "" : String(data.curves[0].tokens[token]);
    refresh();
  }

  slider.addEventListener("input", () => { play(false); moveTo(+slider.value); });
  button.addEventListener("click", () => play(!state.playing));
  slider.addEventListener("keydown", (event) => {
    if (event.key !== " ") return;
    event.preventDefault();
    play(!state.playing);
  });
  find("select").addEventListener("change", (event) => {
    state.colour = event.target.value;
    legend(root, data, state.colour);
    refresh();
  });
  find(".trails").addEventListener("change", (event) => { state.trails = event.target.checked; refresh(); });
  find(".ghost")?.addEventListener("change", (event) => { state.ghost = event.target.checked; refresh(); });
  find(".follow").addEventListener("change", (event) => {
    if (event.target.value === "") return follow(null);
    const wanted = +event.target.value, tokens = data.curves[0].tokens;
    const distance = (i) => Math.abs(tokens[i] - wanted);
    follow(tokens.reduce((best, _, i) => (distance(i) < distance(best) ? i : best), 0));
  });
  for (const panel of panels) handleGlobe(data, state, panel, { refresh, follow, toggle: () => play(!state.playing) });
  for (const chart of charts)
    chart.box?.addEventListener("change", () => { chart.log = chart.box.checked; refresh(); });
  for (const chart of charts) handleChart(data, chart, (t) => { play(false); moveTo(place(data.times, t)); });
  new ResizeObserver(refresh).observe(root);

  for (const panel of panels) {
    const swatch = panel.element.querySelector(".swatch"), curve = data.curves[panel.index];
    swatch.style.borderTopColor = curve.color;
    swatch.classList.toggle("dashed", curve.dashed);
  }
  root.classList.toggle("turning", data.dim > 2);
  root.explorer = { data, state, panels, charts, draw, moveTo, play,
    positions: (index) => [...positions(data, data.curves[index], state.position)] };
  // browsers keep form fields over a reload: read them rather than overwrite them
  for (const field of root.querySelectorAll("select, input[type='checkbox']"))
    field.dispatchEvent(new Event("change"));
  moveTo(+slider.value);
  draw();
}

function legend(root, data, key) {
  const bar = root.querySelector(".bar"), colour = data.colours.find((c) => c.key === key);
  bar.hidden = !colour;
  if (!colour) return;
  const zero = colour.high === 0;
  const kinds = { log: "log", linear: "linear" };
  const text = zero ? ["zero everywhere", "", ""] : 
    [(colour.floor ? "≤ " : "") + format(colour.low, 3), format(colour.high, 3),
      [colour.unit, kinds[colour.scale]].filter((word) => word).join(", ")];
  ["low", "high", "unit"].forEach((name, k) => { bar.querySelector("." + name).textContent = text[k]; });
  const ramp = bar.querySelector(".ramp");
  ramp.hidden = zero;
  ramp.style.background = `linear-gradient(to right, ${data.map.join(",")})`;
}

function handleGlobe(data, state, panel, { refresh, follow, toggle }) {
  const { canvas } = panel;
  const turn = (yaw, pitch) => {
    if (data.dim === 2) return;
    state.view.yaw += yaw;
    state.view.pitch = clip(state.view.pitch + pitch, -Math.PI / 2, Math.PI / 2);
    refresh();
  };
  const zoom = (factor) => { state.view.zoom = clip(state.view.zoom * factor, 0.6, 4); refresh(); };
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, y: event.clientY, moved: 0 };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!held) return;
    const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
    held = { x: event.clientX, y: event.clientY, moved: held.moved + Math.abs(dx) + Math.abs(dy) };
    turn(-dx / panel.at.radius, dy / panel.at.radius);
  });
  canvas.addEventListener("pointercancel", () => { held = null; });
  canvas.addEventListener("pointerup", (event) => {
    if (held && held.moved < 4) {
      const box = canvas.getBoundingClientRect();
      follow(nearest(data, state, panel, event.clientX - box.left, event.clientY - box.top));
    }
    held = null;
  });
  const keys = {
    ArrowLeft: () => turn(-0.1, 0), ArrowRight: () => turn(0.1, 0),
    ArrowUp: () => turn(0, 0.1), ArrowDown: () => turn(0, -0.1),
    "+": () => zoom(1.15), "=": () => zoom(1.15), "-": () => zoom(1 / 1.15), " ": toggle,
    0: () => { Object.assign(state.view, HOME); refresh(); }, Escape: () => follow(null),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
}

/** The front token within 14 pixels of a place, or none. */
function nearest(data, state, panel, x, y) {
  const curve = data.curves[panel.index], frame = positions(data, curve, state.position);
  const { at, cam } = panel;
  let best = null, least = 14;
  for (let i = 0; i < curve.n; i++) {
    if (data.dim === 3 && dot(cam.out, frame, 3 * i) < 0) continue;
    const distance = Math.hypot(at.x + at.radius * dot(cam.right, frame, 3 * i) - x,
      at.y - at.radius * dot(cam.up, frame, 3 * i) - y);
    if (distance < least) [best, least] = [i, distance];
  }
  return best;
}

function handleChart(data, chart, show) {
  const at = (event) => {
    const { box, first, last } = chart.frame;
    const x = event.clientX - chart.canvas.getBoundingClientRect().left;
    show(clip(first + ((x - box.left) / (box.right - box.left)) * (last - first), first, last));
  };
  chart.canvas.addEventListener("pointerdown", (event) => {
    chart.canvas.setPointerCapture(event.pointerId);
    at(event);
  });
  chart.canvas.addEventListener("pointermove", (event) => { if (event.buttons & 1) at(event); });
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".explorer").forEach(start);
});
