// Boxes on one row. A track holds boxes of which few overlap, sorted by start; makeTracks spreads overlapping boxes over
// several tracks, which share the row's height. Wide views of many boxes are drawn from bins: the share of each
// kind in equal stretches of time, so that a view costs what can be seen, not what was recorded.
const tracks = (() => {
  const BIN_COUNT = 16384; // in the finest level of bins; the next levels have half as many each
  const MIN_BOXES_FOR_BINS = 6000;
  const COARSEST_LEVEL = 6; // which has 256 bins
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
  function makeTracks(boxes, indices, maxTracks = MAX_TRACKS) {
    const lists = [], ends = [];
    for (const i of indices) {
      let level = 0;
      while (level < lists.length && ends[level] > boxes.start[i] && level < maxTracks - 1) level++;
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

  // Bins of a track: the time of each kind in equal stretches of [begin, end), at one level: level 0 has BIN_COUNT of them, each
  // next half as many. A level is made when first needed, and again after the kinds of boxes were changed (forget).
  function binsOf(track, { begin, end }, level) {
    track.bins ??= new Map();
    if (track.bins.has(level)) return track.bins.get(level);
    const { boxes, index, count } = track, { start, end: stop, kind: kinds } = boxes;
    const size = BIN_COUNT >> level, perMs = size / (end - begin);
    const slots = new Map(); // kind → Float32Array of covered shares
    let kind = -1, shares = null;
    for (let i = 0; i < count; i++) {
      const box = index[i], from = (start[box] - begin) * perMs, to = (stop[box] - begin) * perMs;
      if (kinds[box] !== kind) {
        kind = kinds[box];
        shares = slots.get(kind);
        if (!shares) slots.set(kind, shares = new Float32Array(size));
      }
      const first = Math.max(0, Math.floor(from)), last = Math.min(Math.floor(to), size - 1);
      if (first === last) shares[first] += to - from; // most boxes of a wide view
      else for (let bin = first; bin <= last; bin++) shares[bin] += Math.min(to, bin + 1) - Math.max(from, bin);
    }
    track.bins.set(level, slots);
    return slots;
  }

  // The coarsest level whose bins are at most half a pixel wide, else the finest.
  function levelFor({ begin, end, from, to, width }) {
    const finestPx = (end - begin) / BIN_COUNT * width / (to - from);
    let level = 0;
    while (level < COARSEST_LEVEL && finestPx * 2 ** (level + 1) <= 0.5) level++;
    return level;
  }
  // The first bin of each pixel column of a picture, and of the one after the last: the same for all its tracks, so made once.
  function firstBins(picture) {
    if (picture.bins) return picture.bins;
    const { begin, end, from, to, width } = picture, level = levelFor(picture), size = BIN_COUNT >> level;
    const first = new Int32Array(width + 1), perColumn = (to - from) / width * size / (end - begin), offset = (from - begin) * size / (end - begin);
    for (let column = 0; column <= width; column++) first[column] = Math.min(size, Math.max(0, Math.floor(offset + column * perColumn)));
    picture.bins = { level, first };
    return picture.bins;
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
      fillFromBins(track, picture, coverage);
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

  function fillFromBins(track, picture, coverage) {
    const { level, first } = firstBins(picture), { width, hidden } = picture;
    for (const [kind, bins] of binsOf(track, picture, level)) {
      if (hidden.has(kind)) continue;
      const shares = sharesIn(coverage, kind, width);
      for (let column = 0; column < width; column++) {
        const from = first[column], to = Math.min(bins.length, Math.max(from + 1, first[column + 1]));
        let sum = 0;
        for (let bin = from; bin < to; bin++) sum += bins[bin];
        if (sum) shares[column] = sum / (to - from);
      }
    }
  }

  // A pixel column is filled from below: its height is the share of its time in which something ran.
  function drawColumns(coverage, { pixels, stride, left, width, colours }, top, height) {
    if (!coverage.size) return;
    const kinds = [...coverage.keys()].sort((a, b) => a - b), bottom = top + height;
    const sharesByKind = kinds.map((kind) => coverage.get(kind)), colourByKind = kinds.map((kind) => colours[kind]);
    for (let column = 0; column < width; column++) {
      let y = bottom, total = 0;
      for (let i = 0; i < sharesByKind.length; i++) total += sharesByKind[i][column];
      if (!total) continue;
      const scale = height / Math.max(1, total);
      for (let i = 0; i < sharesByKind.length; i++) {
        const share = sharesByKind[i][column];
        if (!share) continue;
        const until = Math.max(top, Math.min(y - 1, Math.round(y - share * scale))), colour = colourByKind[i]; // at least one pixel
        for (; y > until; y--) pixels[(y - 1) * stride + left + column] = colour;
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
