"use strict";
// Boxes on rows: unpacked from columns of integers, and drawn so that what is narrower than a pixel keeps its share.
const boxes = (() => {
  const NARROW = 1.5; // pixels: below this a box is counted into its columns instead of drawn
  const FAINTEST = 0.4; // of a column in which something ran at all

  async function unpack(packed) {
    const text = atob(packed.data), bytes = new Uint8Array(text.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i); // Uint8Array.from with a function is far slower
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const buffer = await new Response(stream).arrayBuffer();
    const n = packed.count;
    let at = 0;
    const take = (type) => {
      const part = new type(buffer.slice(at, at + n * type.BYTES_PER_ELEMENT));
      at += n * type.BYTES_PER_ELEMENT;
      return part;
    };
    const [row, kind, half] = [take(Uint16Array), take(Uint8Array), take(Uint8Array)];
    const [step, length, stage, microbatch] = [take(Int32Array), take(Int32Array), take(Int16Array), take(Int16Array)];
    const waiting = packed.waiting ? { cause: take(Int8Array), wait: take(Int32Array), after: take(Int32Array), path: take(Int32Array) } : null;
    const start = new Float64Array(n), end = new Float64Array(n), ms = packed.unit_ns / 1e6;
    for (let i = 0, t = 0; i < n; i++) {
      t += step[i];
      start[i] = t * ms;
      end[i] = (t + length[i]) * ms;
    }
    const rows = new Map(); // row → [from, to) of its boxes, which are sorted by start
    for (let i = 0; i < n; i++) {
      const range = rows.get(row[i]);
      if (range) range[1] = i + 1; else rows.set(row[i], [i, i + 1]);
    }
    if (waiting) for (const name of ["wait", "path"]) waiting[name] = Float64Array.from(waiting[name], (ns) => ns * ms);
    return { n, row, kind, half, start, end, stage, microbatch, waiting, rows, views: new Map() };
  }

  // What one row shows in one view: of every kind the wide boxes, and the opacity of its narrow ones in each pixel column.
  // A column is cut in two bands, the upper and the lower half of the row; kinds are painted one after the other.
  function view(all, { row, x0, scale, left, right }, hidden) {
    const key = `${x0},${scale},${left},${right},${[...hidden].join()}`, known = all.views.get(row);
    if (known && known.key === key) return known;
    const columns = Math.max(1, Math.ceil(right - left)), wide = new Map(), narrow = new Map();
    const [from, to] = all.rows.get(row) || [0, 0];
    for (let i = from; i < to; i++) {
      const kind = all.kind[i];
      if (hidden.has(kind)) continue;
      const a = Math.max(x0 + all.start[i] * scale, left), b = Math.min(x0 + all.end[i] * scale, right);
      if (b < left || a > right) continue;
      if (b - a > NARROW) {
        if (!wide.has(kind)) wide.set(kind, []);
        wide.get(kind).push([a, b, all.half[i]]);
        continue;
      }
      if (!narrow.has(kind)) narrow.set(kind, [new Float32Array(columns), new Float32Array(columns)]);
      for (let column = Math.floor(a - left); column <= Math.floor(b - left) && column < columns; column++) {
        const part = Math.max(Math.min(b, left + column + 1) - Math.max(a, left + column), 1e-6);
        if (all.half[i] !== 2) narrow.get(kind)[0][column] += part;
        if (all.half[i] !== 1) narrow.get(kind)[1][column] += part;
      }
    }
    const found = { key, wide, narrow: opacities(narrow, columns) };
    all.views.set(row, found);
    return found;
  }

  // Turn how much of a column each kind covers into the opacity that, painted in order, gives that mixture.
  function opacities(narrow, columns) {
    const kinds = [...narrow.keys()].sort((a, b) => b - a); // the last painted first
    for (const band of [0, 1]) {
      for (let column = 0; column < columns; column++) {
        let sum = 0, left = 1;
        for (const kind of kinds) sum += narrow.get(kind)[band][column];
        if (!sum) continue;
        const whole = Math.min(1, Math.max(sum, FAINTEST));
        for (const kind of kinds) {
          const share = whole * narrow.get(kind)[band][column] / sum;
          narrow.get(kind)[band][column] = left > 1e-6 ? Math.min(1, share / left) : 0;
          left -= share;
        }
      }
    }
    return narrow;
  }

  const known = [];
  const Shape = echarts.graphic.extendShape({
    shape: { key: 0, hidden: null, row: 0, kind: 0, x0: 0, scale: 1, top: 0, height: 10, left: 0, right: 0 },
    buildPath(ctx, s) {
      const { wide, narrow } = view(known[s.key], s, s.hidden);
      for (const [a, b, half] of wide.get(s.kind) || []) {
        const hair = b - a > 4 ? 1 : 0; // between neighbours
        ctx.rect(a, half === 2 ? s.top + s.height / 2 : s.top, b - a - hair, half ? s.height / 2 : s.height);
      }
      const [upper, lower] = narrow.get(s.kind) || [[], []];
      for (let column = 0; column < upper.length; column++) {
        // A part of a pixel's width is drawn as so much opacity.
        if (upper[column] && upper[column] === lower[column]) ctx.rect(s.left + column, s.top, upper[column], s.height);
        else {
          if (upper[column]) ctx.rect(s.left + column, s.top, upper[column], s.height / 2);
          if (lower[column]) ctx.rect(s.left + column, s.top + s.height / 2, lower[column], s.height / 2);
        }
      }
    },
  });
  echarts.graphic.registerShape("boxes", Shape);
  const keyOf = (all) => (all.key ??= known.push(all) - 1);

  return { unpack, view, keyOf };
})();
