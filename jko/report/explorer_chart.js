// One chart of the explorer; see explorer.js.

/** Range of the values: from zero for rates; of positive values' logarithms on a log axis. */
function chartRange(values, key, log) {
  if (log) values = values.filter((v) => v > 0).map(Math.log10);
  let low = Math.min(...values), high = Math.max(...values);
  if (values.length === 0) return [0, 1];
  if (!log && key !== "energy") low = Math.min(0, low);
  if (low === 0 && high === 0) return [0, 1];
  if (high - low <= 1e-12 * Math.max(Math.abs(high), Math.abs(low)))
    [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const room = 0.06 * (high - low);
  return [log || key === "energy" ? low - room : low, high + room];
}

function chartFrame(data, chart, pen) {
  const { key, log } = chart;
  const values = data.curves.flatMap((curve) => (curve[key] ? curve[key].v : []));
  const [low, high] = chartRange(values, key, log);
  const times = data.times, first = times[0], last = Math.max(times[times.length - 1], first + 1e-12);
  const box = { left: 4.6 * pen.text, right: pen.width - 10, top: 8, bottom: pen.height - 1.7 * pen.text };
  const place = (v) => clip(log ? Math.log10(Math.max(v, 1e-300)) : v, low - (high - low), high);
  return {
    low, high, first, last, box, log,
    x: (t) => box.left + ((t - first) / (last - first)) * (box.right - box.left),
    y: (v) => box.bottom - ((place(v) - low) / (high - low)) * (box.bottom - box.top),
  };
}

function drawAxes(frame, pen) {
  const { ctx, text } = pen, { box } = frame;
  ctx.font = `${text}px ${FONT}`;
  ctx.fillStyle = SOFT;
  ctx.strokeStyle = "#dfe4e8";
  ctx.lineWidth = 1;
  const wished = niceStep(frame.high - frame.low, Math.max(3, (box.bottom - box.top) / 32));
  const rows = frame.log ? Math.max(1, Math.round(wished)) : wished;
  ctx.textAlign = "right";
  ctx.textBaseline = "middle";
  for (let k = Math.ceil(frame.low / rows - 1e-9); k * rows <= frame.high; k++) {
    const value = frame.log ? 10 ** (k * rows) : k * rows;
    const y = Math.round(frame.y(value)) + 0.5;
    ctx.beginPath();
    ctx.moveTo(box.left, y);
    ctx.lineTo(box.right, y);
    ctx.stroke();
    ctx.fillText(format(value), box.left - 6, y);
  }
  const columns = niceStep(frame.last - frame.first, Math.max(2, (box.right - box.left) / 75));
  ctx.textAlign = "center";
  ctx.textBaseline = "top";
  for (let k = Math.ceil(frame.first / columns - 1e-9); k * columns <= frame.last * (1 + 1e-9); k++)
    ctx.fillText(format(k * columns), clip(frame.x(k * columns), 0, pen.width - 14), box.bottom + 4);
}

function drawLine(curve, line, frame, pen) {
  const { ctx } = pen;
  ctx.save();
  ctx.beginPath();
  ctx.rect(frame.box.left - 4, 0, frame.box.right - frame.box.left + 8, frame.box.bottom + 4);
  ctx.clip();
  ctx.strokeStyle = ctx.fillStyle = curve.color;
  ctx.lineWidth = 2.4;
  ctx.setLineDash(curve.dashed ? [8, 5] : []);
  ctx.beginPath();
  line.t.forEach((t, k) => ctx.lineTo(frame.x(t), frame.y(line.v[k])));
  ctx.stroke();
  ctx.setLineDash([]);
  if (curve.marks && line === curve.energy)
    line.t.forEach((t, k) => {
      ctx.beginPath();
      ctx.arc(frame.x(t), frame.y(line.v[k]), 2.6, 0, 2 * Math.PI);
      ctx.fill();
    });
  ctx.restore();
}

function drawChart(data, state, chart) {
  const pen = prepare(chart.canvas), { ctx } = pen, now = state.time;
  const frame = chartFrame(data, chart, pen);
  drawAxes(frame, pen);
  for (const curve of data.curves)
    if (curve[chart.key]) drawLine(curve, curve[chart.key], frame, pen);
  chart.cursor = frame.x(now);
  chart.frame = frame;
  ctx.strokeStyle = INK;
  ctx.lineWidth = 1.5;
  ctx.beginPath();
  ctx.moveTo(chart.cursor, frame.box.top - 6);
  ctx.lineTo(chart.cursor, frame.box.bottom);
  ctx.stroke();
  for (const curve of data.curves) {
    const line = curve[chart.key];
    if (!line) continue;
    ctx.fillStyle = curve.color;
    ctx.strokeStyle = "#fff";
    ctx.beginPath();
    ctx.arc(chart.cursor, frame.y(pick(line.v, place(line.t, now))), 5, 0, 2 * Math.PI);
    ctx.fill();
    ctx.stroke();
  }
}
