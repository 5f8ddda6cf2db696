"use strict";
// Boxes on rows: unpacked from columns of integers, and drawn so that boxes narrower than a pixel keep their share.
const boxes = (() => {
  const NARROW_PX = 1.5; // a narrower box is not drawn itself: it adds to the opacity of the pixel columns it lies in
  const MIN_OPACITY = 0.4; // of a pixel column in which anything ran
  const UPPER = 1, LOWER = 2; // part of the row that a box fills; 0 is the whole row

  // Read what pack_boxes in packed_boxes.py wrote. Times become milliseconds. `rows` maps a row to the range
  // [first, end) of its boxes, which are sorted by start.
  async function unpack(packed) {
    const text = atob(packed.data), bytes = new Uint8Array(text.length);
    // A plain loop: Uint8Array.from with a function is far slower.
    for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const buffer = await new Response(stream).arrayBuffer();
    const count = packed.count;
    let offset = 0;
    const nextColumn = (type) => {
      const column = new type(buffer.slice(offset, offset + count * type.BYTES_PER_ELEMENT));
      offset += count * type.BYTES_PER_ELEMENT;
      return column;
    };
    const row = nextColumn(Uint16Array), kind = nextColumn(Uint8Array), part = nextColumn(Uint8Array);
    const startDifference = nextColumn(Int32Array), length = nextColumn(Int32Array);
    const stage = nextColumn(Int16Array), microbatch = nextColumn(Int16Array);
    const msPerUnit = packed.unit_ns / 1e6;
    const inMs = (column) => Float64Array.from(column, (units) => units * msPerUnit);
    let waiting = null;
    if (packed.waiting) {
      const cause = nextColumn(Int8Array), wait = inMs(nextColumn(Int32Array));
      const after = nextColumn(Int32Array), path = inMs(nextColumn(Int32Array));
      waiting = { cause, wait, after, path };
    }
    const start = new Float64Array(count), end = new Float64Array(count), rows = new Map();
    let units = 0;
    for (let i = 0; i < count; i++) {
      units += startDifference[i];
      start[i] = units * msPerUnit;
      end[i] = (units + length[i]) * msPerUnit;
      const range = rows.get(row[i]);
      if (range) range[1] = i + 1; else rows.set(row[i], [i, i + 1]);
    }
    return { count, row, kind, part, start, end, stage, microbatch, waiting, rows, views: new Map() };
  }

  // What one row shows in one window: for every kind its wide boxes [left, right, part], and the opacity of its narrow
  // boxes in each pixel column, once for the upper and once for the lower half of the row. Kept until the window changes.
  function view(all, { row, x0, scale, left, right }, hidden) {
    const key = `${x0},${scale},${left},${right},${[...hidden].join()}`;
    const last = all.views.get(row);
    if (last && last.key === key) return last;
    const columns = Math.max(1, Math.ceil(right - left)), wide = new Map(), narrow = new Map();
    const [first, end] = all.rows.get(row) || [0, 0];
    for (let i = first; i < end; i++) {
      const kind = all.kind[i], part = all.part[i];
      if (hidden.has(kind)) continue;
      const boxLeft = Math.max(x0 + all.start[i] * scale, left), boxRight = Math.min(x0 + all.end[i] * scale, right);
      if (boxRight < left || boxLeft > right) continue;
      if (boxRight - boxLeft > NARROW_PX) {
        if (!wide.has(kind)) wide.set(kind, []);
        wide.get(kind).push([boxLeft, boxRight, part]);
        continue;
      }
      if (!narrow.has(kind)) narrow.set(kind, [new Float32Array(columns), new Float32Array(columns)]);
      const [upper, lower] = narrow.get(kind);
      const lastColumn = Math.min(Math.floor(boxRight - left), columns - 1);
      for (let column = Math.floor(boxLeft - left); column <= lastColumn; column++) {
        const columnLeft = left + column;
        const covered = Math.max(Math.min(boxRight, columnLeft + 1) - Math.max(boxLeft, columnLeft), 1e-6);
        if (part !== LOWER) upper[column] += covered;
        if (part !== UPPER) lower[column] += covered;
      }
    }
    const current = { key, wide, narrow: toOpacities(narrow, columns) };
    all.views.set(row, current);
    return current;
  }

  // Turn how much of a pixel column each kind covers into opacities that, painted in order of the kinds, mix to those
  // shares: a kind painted later hides what is under it, so the topmost is computed first.
  function toOpacities(narrow, columns) {
    const topmostFirst = [...narrow.keys()].sort((a, b) => b - a);
    for (const half of [0, 1]) {
      for (let column = 0; column < columns; column++) {
        let covered = 0, stillVisible = 1;
        for (const kind of topmostFirst) covered += narrow.get(kind)[half][column];
        if (!covered) continue;
        const total = Math.min(1, Math.max(covered, MIN_OPACITY));
        for (const kind of topmostFirst) {
          const coverage = narrow.get(kind)[half], share = total * coverage[column] / covered;
          coverage[column] = stillVisible > 1e-6 ? Math.min(1, share / stillVisible) : 0;
          stillVisible -= share;
        }
      }
    }
    return narrow;
  }

  // A shape of ECharts that draws all boxes of one kind in one row. Its boxes are named by a key into `known`: ECharts
  // copies the shape's values, which must not copy the boxes.
  const known = [];
  const keyOf = (all) => (all.key ??= known.push(all) - 1);
  const Shape = echarts.graphic.extendShape({
    shape: { key: 0, hidden: null, row: 0, kind: 0, x0: 0, scale: 1, top: 0, height: 10, left: 0, right: 0 },
    buildPath(context, { key, hidden, row, kind, x0, scale, top, height, left, right }) {
      const { wide, narrow } = view(known[key], { row, x0, scale, left, right }, hidden);
      const middle = top + height / 2;
      for (const [boxLeft, boxRight, part] of wide.get(kind) || []) {
        const gap = boxRight - boxLeft > 4 ? 1 : 0; // between neighbours
        context.rect(boxLeft, part === LOWER ? middle : top, boxRight - boxLeft - gap, part ? height / 2 : height);
      }
      // A rectangle narrower than a pixel is painted with that much opacity.
      const [upper, lower] = narrow.get(kind) || [[], []];
      for (let column = 0; column < upper.length; column++) {
        const x = left + column;
        if (upper[column] && upper[column] === lower[column]) {
          context.rect(x, top, upper[column], height);
        } else {
          if (upper[column]) context.rect(x, top, upper[column], height / 2);
          if (lower[column]) context.rect(x, middle, lower[column], height / 2);
        }
      }
    },
  });
  echarts.graphic.registerShape("boxes", Shape);

  return { unpack, view, keyOf };
})();
