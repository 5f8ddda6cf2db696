// Boxes on one row. A track holds boxes of which few overlap, sorted by start; makeTracks spreads overlapping boxes over
// several tracks, which share the row's height. Wide views of many boxes are drawn from bins: the share of each
// kind in equal stretches of time, so that a view costs what can be seen, not what was recorded.
const tracks = (() => {
  const BIN_COUNT = 16384; // in the finest level of bins; the next levels have half as many each
  const MIN_BOXES_FOR_BINS = 6000;
  const NARROW_PX = 1.5; // a narrower box is not drawn itself: it adds to the share of the pixel columns it lies in
  const MAX_TRACKS = 4; // of one row; what overlaps more is drawn over the last

  // First position in an ascending array whose value is above the limit.
  function firstAbove(values, limit) {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] > limit) high = middle; else low = middle + 1;
    }
    return low;
  }

  // Spread boxes over tracks: each box goes to the first track that is free when it starts.
  // `boxes` is { start, end, kind } in ms, `indices` are the boxes of this row, in order of start.
  function makeTracks(boxes, indices) {
    const lists = [], ends = [];
    for (const i of indices) {
      let level = 0;
      while (level < lists.length && ends[level] > boxes.start[i] && level < MAX_TRACKS - 1) level++;
      if (level === lists.length) { lists.push([]); ends.push(-Infinity); }
      lists[level].push(i);
      ends[level] = Math.max(ends[level], boxes.end[i]);
    }
    return lists.map((list) => makeTrack(boxes, Uint32Array.from(list)));
  }

  // One track for each part of a row that occurs: boxes of the whole row, of its upper and of its lower half.
  function makePartTracks(boxes, indices) {
    return [0, 1, 2].map((part) => {
      const track = makeTrack(boxes, Uint32Array.from(indices.filter((i) => boxes.part[i] === part)));
      return Object.assign(track, { part });
    }).filter((track) => track.count);
  }

  // One track for each list of boxes, over the whole row: later ones are drawn above earlier ones.
  const makeLayers = (boxes, lists) => lists.filter((list) => list.length)
    .map((list) => Object.assign(makeTrack(boxes, Uint32Array.from(list)), { part: 0 }));

  function makeTrack(boxes, index) {
    const count = index.length, start = new Float64Array(count), reach = new Float64Array(count);
    let latest = -Infinity;
    for (let i = 0; i < count; i++) {
      start[i] = boxes.start[index[i]];
      latest = Math.max(latest, boxes.end[index[i]]);
      reach[i] = latest; // the latest end up to here: ascending, unlike the ends of boxes that overlap
    }
    return { boxes, index, start, reach, count, bins: null };
  }

  // Bins of a track: the time of each kind in BIN_COUNT equal stretches of [begin, end), and in coarser ones.
  // They are made when first needed, and again after the kinds of boxes were changed (forget).
  function binsOf(track, begin, end) {
    if (track.bins) return track.bins;
    const { boxes, index, count } = track, width = (end - begin) / BIN_COUNT;
    const slots = new Map(); // kind → Float32Array of covered shares
    const sharesOf = (kind) => {
      if (!slots.has(kind)) slots.set(kind, new Float32Array(BIN_COUNT));
      return slots.get(kind);
    };
    for (let i = 0; i < count; i++) {
      const box = index[i], from = (boxes.start[box] - begin) / width, to = (boxes.end[box] - begin) / width;
      const shares = sharesOf(boxes.kind[box]), last = Math.min(Math.floor(to), BIN_COUNT - 1);
      for (let bin = Math.max(0, Math.floor(from)); bin <= last; bin++) {
        shares[bin] += Math.min(to, bin + 1) - Math.max(from, bin);
      }
    }
    const levels = [{ width, slots }];
    for (let size = BIN_COUNT / 2; size >= 256; size /= 2) {
      const finer = levels.at(-1).slots, coarser = new Map();
      for (const [kind, shares] of finer) {
        const halved = new Float32Array(size); // a plain loop: Float32Array.from with a function is far slower
        for (let bin = 0; bin < size; bin++) halved[bin] = (shares[2 * bin] + shares[2 * bin + 1]) / 2;
        coarser.set(kind, halved);
      }
      levels.push({ width: levels.at(-1).width * 2, slots: coarser });
    }
    track.bins = { begin, levels };
    return track.bins;
  }

  const forget = (track) => { track.bins = null; };

  const usesBins = (track, { width, from, to, begin, end }) => track.count >= MIN_BOXES_FOR_BINS
    && (end - begin) / BIN_COUNT * width / (to - from) <= 1;

  // The scale of a picture: pixel column of a time, and the rows of pixels as one array of 32-bit colours.
  // picture = { pixels, stride, left, width, from, to, begin, end, colours, hidden }: the window [from, to) of all time
  // [begin, end) in `width` pixels; left, top and height are in pixels.
  function draw(track, picture, top, height) {
    const { width, from, to } = picture, pxPerMs = width / (to - from);
    const coverage = new Map(); // kind → share of each pixel column
    if (usesBins(track, picture)) {
      fillFromBins(binsOf(track, picture.begin, picture.end), picture, pxPerMs, coverage);
      drawColumns(coverage, picture, top, height);
      return;
    }
    const { boxes, index } = track;
    const first = firstAbove(track.reach, from), last = firstAbove(track.start, to), wide = [];
    for (let i = first; i < last; i++) {
      const box = index[i], kind = boxes.kind[box];
      if (picture.hidden.has(kind) || boxes.end[box] < from) continue;
      const left = (boxes.start[box] - from) * pxPerMs, right = (boxes.end[box] - from) * pxPerMs;
      if (right - left >= NARROW_PX) wide.push(left, right, kind);
      else addToColumns(coverage, kind, left, right, width);
    }
    drawColumns(coverage, picture, top, height);
    for (let i = 0; i < wide.length; i += 3) drawBox(picture, wide[i], wide[i + 1], top, height, wide[i + 2]);
  }

  function sharesIn(coverage, kind, width) {
    let shares = coverage.get(kind);
    if (!shares) coverage.set(kind, shares = new Float32Array(width));
    return shares;
  }

  function addToColumns(coverage, kind, left, right, width) {
    const shares = sharesIn(coverage, kind, width), last = Math.min(Math.floor(right), width - 1);
    for (let column = Math.max(0, Math.floor(left)); column <= last; column++) {
      shares[column] += Math.max(Math.min(right, column + 1) - Math.max(left, column), 1e-6);
    }
  }

  function fillFromBins({ begin, levels }, { width, from, hidden }, pxPerMs, coverage) {
    // The coarsest level whose bins are at most half a pixel wide, else the finest.
    const level = levels.findLast((candidate) => candidate.width * pxPerMs <= 0.5) || levels[0];
    for (const [kind, bins] of level.slots) {
      if (hidden.has(kind)) continue;
      const shares = sharesIn(coverage, kind, width);
      for (let column = 0; column < width; column++) {
        const firstBin = Math.max(0, Math.floor((from + column / pxPerMs - begin) / level.width));
        const endBin = Math.min(bins.length, Math.max(firstBin + 1, Math.floor((from + (column + 1) / pxPerMs - begin) / level.width)));
        let sum = 0;
        for (let bin = firstBin; bin < endBin; bin++) sum += bins[bin];
        if (sum) shares[column] = sum / (endBin - firstBin);
      }
    }
  }

  // A pixel column is filled from below: its height is the share of its time in which something ran.
  function drawColumns(coverage, { pixels, stride, left, width, colours }, top, height) {
    if (!coverage.size) return;
    const kinds = [...coverage.keys()].sort((a, b) => a - b), bottom = top + height;
    for (let column = 0; column < width; column++) {
      let y = bottom, total = 0;
      for (const kind of kinds) total += coverage.get(kind)[column];
      if (!total) continue;
      const scale = height / Math.max(1, total);
      for (const kind of kinds) {
        const share = coverage.get(kind)[column];
        if (!share) continue;
        const until = Math.max(top, Math.min(y - 1, Math.round(y - share * scale))); // at least one pixel
        for (; y > until; y--) pixels[(y - 1) * stride + left + column] = colours[kind];
      }
    }
  }

  function drawBox({ pixels, stride, left: origin, width, colours }, left, right, top, height, kind) {
    const gap = right - left > 4 ? 1 : 0; // between neighbours
    const from = Math.max(0, Math.round(left)), to = Math.min(width, Math.max(Math.round(right) - gap, from + 1));
    if (to <= from) return;
    for (let y = top; y < top + height; y++) pixels.fill(colours[kind], y * stride + origin + from, y * stride + origin + to);
  }

  // The box of a track at a time, or the nearest within a few pixels (slack in ms); -1 for none.
  function boxAt(track, time, slack, hidden) {
    const { boxes, index } = track;
    let nearest = -1, distance = slack;
    const last = firstAbove(track.start, time + slack);
    for (let i = last - 1; i >= 0 && track.reach[i] >= time - slack; i--) {
      const box = index[i];
      if (hidden.has(boxes.kind[box])) continue;
      const away = Math.max(boxes.start[box] - time, time - boxes.end[box], 0);
      if (away === 0) return box;
      if (away <= distance) { nearest = box; distance = away; }
    }
    return nearest;
  }

  // Boxes that are wide enough for a text, in the window.
  function* wideBoxes(track, picture, minPx) {
    const { boxes, index } = track, { from, to, width, hidden } = picture, minMs = minPx * (to - from) / width;
    if (usesBins(track, picture)) return;
    const last = firstAbove(track.start, to);
    for (let i = firstAbove(track.reach, from); i < last; i++) {
      const box = index[i];
      if (boxes.end[box] - boxes.start[box] >= minMs && !hidden.has(boxes.kind[box])) yield box;
    }
  }

  return { makeTracks, makePartTracks, makeLayers, forget, draw, boxAt, wideBoxes, firstAbove };
})();
