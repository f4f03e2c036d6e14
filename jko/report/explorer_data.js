// Numbers and the unpacked data of the explorer; see explorer.js.

const unpack = (text, Kind) =>
  new Kind(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);

const clip = (value, low, high) => Math.min(high, Math.max(low, value));

function format(value, digits = 4) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) {
    const [mantissa, exponent] = value.toExponential(Math.min(2, digits - 1)).split("e");
    const power = String(+exponent).replace("-", "−");
    return `${mantissa.replace(/\.0+$/, "")}e${power}`.replace(/^-/, "−");
  }
  return String(+value.toPrecision(digits)).replace("-", "−");
}

/** Place of `value` in the increasing list, as an index with a fraction. */
function place(list, value) {
  if (value <= list[0]) return 0;
  let low = 0, high = list.length - 1;
  if (value >= list[high]) return high;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] <= value) low = middle; else high = middle;
  }
  return low + (value - list[low]) / (list[high] - list[low]);
}

function pick(list, position) {
  const k = Math.min(Math.floor(position), list.length - 1);
  const next = Math.min(k + 1, list.length - 1);
  return list[k] + (position - k) * (list[next] - list[k]);
}

function niceStep(width, count) {
  const raw = width / count, power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
}

// ---- data ------------------------------------------------------------------------------

function read(root) {
  const data = JSON.parse(root.querySelector("script[type='application/json']").textContent);
  const width = Math.min(data.dim, 3);
  for (const curve of data.curves) {
    const n = curve.tokens.length;
    curve.n = n;
    if (curve.masses) curve.masses = unpack(curve.masses, Uint16Array);
    const raw = unpack(curve.points, Int16Array);
    curve.points = data.times.map((_, k) => {
      const frame = new Float32Array(3 * n);
      for (let i = 0; i < n; i++)
        for (let c = 0; c < width; c++)
          frame[3 * i + c] = raw[(k * n + i) * width + c] / 32767;
      return frame;
    });
  }
  for (const colour of data.colours)
    colour.values = colour.values.map((text) => unpack(text, Uint16Array));
  data.ramp = ramp(data.map.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16))));
  return data;
}

/** Positions at a place between two stops; on the sphere they stay on it. */
function positions(data, curve, position) {
  const k = Math.floor(position), s = position - k, first = curve.points[k];
  if (s === 0) return first;
  const second = curve.points[k + 1], found = new Float32Array(first.length);
  for (let i = 0; i < first.length; i += 3) {
    let length = 0;
    for (let c = i; c < i + 3; c++) {
      found[c] = (1 - s) * first[c] + s * second[c];
      length += found[c] * found[c];
    }
    if (data.dim <= 3 && length > 0)
      for (let c = i; c < i + 3; c++) found[c] /= Math.sqrt(length);
  }
  return found;
}

/** Place of a token's value on the colour scale, in [0, 1]. */
function shade(data, colour, index, token, position) {
  const values = colour.values[index], n = data.curves[index].n, k = Math.floor(position), s = position - k;
  const here = values[k * n + token];
  const next = s === 0 ? here : values[(k + 1) * n + token];
  return ((1 - s) * here + s * next) / 65535;
}

/** Radius of a token relative to that of the mean weight; on fixed nodes it changes. */
function tokenSize(curve, token, position) {
  if (!curve.masses) return curve.sizes[token];
  return curve.masses[Math.round(position) * curve.n + token] / 10000;
}

function scaleValue(colour, s) {
  const { low, high, scale } = colour;
  if (scale === "log") return low * (high / low) ** s;
  return low + s * (high - low);
}

/** 256 colours between the given ones. */
function ramp(stops) {
  return Array.from({ length: 256 }, (_, j) => {
    const at = (j / 255) * (stops.length - 1);
    const k = Math.min(Math.floor(at), stops.length - 2), f = at - k;
    const mix = stops[k].map((v, c) => Math.round(v + f * (stops[k + 1][c] - v)));
    return `rgb(${mix.join(",")})`;
  });
}
