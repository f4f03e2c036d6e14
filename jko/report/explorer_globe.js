// One globe of the explorer; see explorer.js.

const INK = "#1c2329", SOFT = "#57636d", LINE = "#c3ccd4", BALL = "#eef2f5";
const FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif";

/** Fit the canvas to its place on the page and the screen; pixels are CSS pixels after this. */
function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const real = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== real[0] || canvas.height !== real[1])
    [canvas.width, canvas.height] = real;
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, width, height);
  return { ctx, width, height, text: width > 480 ? 15 : 13 };
}

function camera(data, view) {
  if (data.dim === 2) return { right: [1, 0, 0], up: [0, 1, 0], out: [0, 0, 1] };
  const [cy, sy, cp, sp] =
    [Math.cos(view.yaw), Math.sin(view.yaw), Math.cos(view.pitch), Math.sin(view.pitch)];
  return { right: [-sy, cy, 0], up: [-sp * cy, -sp * sy, cp], out: [cp * cy, cp * sy, sp] };
}

const dot = (a, p, i) => a[0] * p[i] + a[1] * p[i + 1] + a[2] * p[i + 2];

const CIRCLES = (() => {
  const turn = Array.from({ length: 73 }, (_, k) => (k * Math.PI) / 36), list = [];
  for (const degrees of [-60, -30, 0, 30, 60]) {
    const a = (degrees * Math.PI) / 180, c = Math.cos(a);
    list.push(turn.map((t) => [c * Math.cos(t), c * Math.sin(t), Math.sin(a)]));
  }
  for (let k = 0; k < 6; k++) {
    const a = (k * Math.PI) / 6;
    list.push(turn.map((t) => [Math.cos(t) * Math.cos(a), Math.cos(t) * Math.sin(a), Math.sin(t)]));
  }
  return list;
})();

function drawBackground(data, cam, at, pen) {
  const { ctx, text } = pen;
  ctx.beginPath();
  ctx.arc(at.x, at.y, at.radius, 0, 2 * Math.PI);
  if (data.dim > 2) { ctx.fillStyle = data.dim === 3 ? BALL : "#f7f9fa"; ctx.fill(); }
  ctx.lineWidth = 1.2;
  ctx.strokeStyle = "#9aa5ae";
  ctx.stroke();
  if (data.dim > 2) {
    ctx.lineWidth = 1;
    ctx.strokeStyle = LINE;
    ctx.beginPath();
    for (const circle of CIRCLES) {
      let drawing = false;
      for (const p of circle) {
        if (dot(cam.out, p, 0) < 0) { drawing = false; continue; }
        const [x, y] = [at.x + at.radius * dot(cam.right, p, 0), at.y - at.radius * dot(cam.up, p, 0)];
        if (drawing) ctx.lineTo(x, y); else ctx.moveTo(x, y);
        drawing = true;
      }
    }
    ctx.stroke();
  }
  ctx.font = `${text}px ${FONT}`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  data.axes.forEach((name, c) => {
    const p = [0, 0, 0];
    p[c] = 1.1;
    const behind = dot(cam.out, p, 0) < 0 && data.dim > 2;
    const [x, y] = [dot(cam.right, p, 0), dot(cam.up, p, 0)];
    if (behind && Math.hypot(x, y) < 1) return;
    ctx.fillStyle = behind ? "#8a959e" : SOFT;
    // inside the disc the label steps aside: tokens often gather at the axes
    const aside = Math.hypot(x, y) < 1 ? 2 * text : 0;
    ctx.fillText(name, at.x + at.radius * x, at.y - at.radius * y + aside);
  });
}

/** How visible a depth in [-1, 1] is: the far side shows through the ball, faintly. */
function strength(data, depth) {
  if (data.dim === 2) return 1;
  if (data.dim === 3) return depth >= 0 ? 1 : 0.16;
  return 0.45 + 0.55 * clip((depth + 0.7) / 1.4, 0, 1);
}

function drawTrail(data, curve, frames, token, cam, at, pen, heavy) {
  const { ctx } = pen;
  ctx.strokeStyle = heavy ? INK : curve.color;
  for (const front of [false, true]) {
    ctx.globalAlpha = (heavy ? 0.9 : 0.45) * (front ? 1 : 0.3);
    ctx.lineWidth = heavy ? 2 : 1;
    ctx.beginPath();
    let drawing = false;
    for (const frame of frames) {
      const depth = data.dim === 2 ? 1 : dot(cam.out, frame, 3 * token);
      if (depth >= 0 !== front) { drawing = false; continue; }
      const x = at.x + at.radius * dot(cam.right, frame, 3 * token);
      const y = at.y - at.radius * dot(cam.up, frame, 3 * token);
      if (drawing) ctx.lineTo(x, y); else ctx.moveTo(x, y);
      drawing = true;
    }
    ctx.stroke();
  }
  ctx.globalAlpha = 1;
}

/** Tokens from the back to the front. */
function drawTokens(data, state, index, frame, cam, at, pen) {
  const { ctx } = pen, curve = data.curves[index], n = curve.n;
  const colour = data.colours.find((c) => c.key === state.colour);
  const depth = Float32Array.from({ length: n }, (_, i) => dot(cam.out, frame, 3 * i));
  const order = Uint16Array.from({ length: n }, (_, i) => i);
  if (data.dim > 2) order.sort((a, b) => depth[a] - depth[b]);
  const base = at.radius * clip(0.036 * Math.sqrt(60 / n), 0.011, 0.036);
  ctx.lineWidth = colour ? 0.9 : 0.7;
  for (const i of order) {
    const x = at.x + at.radius * dot(cam.right, frame, 3 * i);
    const y = at.y - at.radius * dot(cam.up, frame, 3 * i);
    ctx.globalAlpha = strength(data, data.dim === 2 ? 1 : depth[i]);
    ctx.fillStyle = colour
      ? data.ramp[Math.round(255 * shade(data, colour, index, i, state.position))] : curve.color;
    ctx.strokeStyle = colour ? "rgba(20,26,32,0.75)" : "#fff";
    ctx.beginPath();
    ctx.arc(x, y, Math.max(1.2, base * tokenSize(curve, i, state.position)), 0, 2 * Math.PI);
    ctx.fill();
    ctx.stroke();
    if (i === state.follow) {
      ctx.globalAlpha = 1;
      ctx.lineWidth = 2.5;
      ctx.strokeStyle = INK;
      ctx.beginPath();
      ctx.arc(x, y, base * tokenSize(curve, i, state.position) + 5, 0, 2 * Math.PI);
      ctx.stroke();
      ctx.lineWidth = colour ? 0.9 : 0.7;
    }
  }
  ctx.globalAlpha = 1;
}

function drawRings(data, curve, position, cam, at, pen, colour) {
  const { ctx } = pen, base = at.radius * clip(0.036 * Math.sqrt(60 / curve.n), 0.011, 0.036);
  const frame = positions(data, curve, position);
  ctx.strokeStyle = colour;
  ctx.lineWidth = 1.6;
  for (let i = 0; i < curve.n; i++) {
    const depth = data.dim === 2 ? 1 : dot(cam.out, frame, 3 * i);
    if (data.dim === 3 && depth < 0) continue;
    ctx.globalAlpha = strength(data, depth);
    ctx.beginPath();
    ctx.arc(at.x + at.radius * dot(cam.right, frame, 3 * i),
      at.y - at.radius * dot(cam.up, frame, 3 * i),
      base * tokenSize(curve, i, position) + 2.5, 0, 2 * Math.PI);
    ctx.stroke();
  }
  ctx.globalAlpha = 1;
}

function drawGlobe(data, state, panel) {
  const pen = prepare(panel.canvas), curve = data.curves[panel.index];
  const fit = (Math.min(pen.width, pen.height) / 2 - 14) / 1.06;
  const at = { x: pen.width / 2, y: pen.height / 2, radius: fit * state.view.zoom };
  const cam = camera(data, state.view), frame = positions(data, curve, state.position);
  drawBackground(data, cam, at, pen);
  const past = [...curve.points.slice(0, Math.floor(state.position) + 1), frame];
  if (state.trails)
    for (let i = 0; i < curve.n; i++) drawTrail(data, curve, past, i, cam, at, pen, false);
  if (state.follow !== null && state.follow < curve.n) drawTrail(data, curve, past, state.follow, cam, at, pen, true);
  drawTokens(data, state, panel.index, frame, cam, at, pen);
  if (state.ghost && panel.index !== data.ghost) {
    const other = data.curves[data.ghost];
    // among the colours of values, the curve's own colour would be lost
    const colour = state.colour === "plain" ? other.color : INK;
    drawRings(data, other, state.position, cam, at, pen, colour);
  }
  panel.at = at;
  panel.cam = cam;
}
