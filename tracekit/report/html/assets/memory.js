// Memory over time by purpose, and what is there at a moment, or grew between two: flame graph, largest blocks, segments.
const memoryView = (() => {
  const CURVE_PX = 260, AXIS_PX = 18, LEFT_PX = 62, ROW_PX = 18, MIN_BOX_SHARE = 0.0008, MAX_BOXES = 4000, MAX_ROWS = 25, MAX_SEGMENTS = 60;
  const PAPER_PX = 1000, SEGMENT_PX = 9, MAX_GAP_PX = 6, LONG_GAPS = 10, MAX_GAP_SHARE = 0.5;
  const byId = (name) => document.getElementById(`memory-${name}`);
  const styles = () => getComputedStyle(document.documentElement);
  const bytesText = (count) => {
    const sign = count < 0 ? "−" : "", size = Math.abs(count);
    for (const [unit, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) if (size >= unit) return `${sign}${(size / unit).toFixed(size < 10 * unit ? 2 : 1)} ${name}`;
    return `${sign}${size} bytes`;
  };
  const isDark = (colour) => {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    return 0.3 * r + 0.59 * g + 0.11 * b < 125;
  };

  // Unpack one GPU: times in ms, its allocations as columns, and the bytes of each category after each event.
  async function unpackTrack(packed, categories) {
    const [levels, lives, stacks, segments] = await Promise.all([
      columns.unpack(packed.levels), columns.unpack(packed.lives), columns.unpackJson(packed.stacks),
      packed.segments ? columns.unpack(packed.segments) : null]);
    const count = levels.count, msPerUnit = packed.levels.unit_ns / 1e6;
    const time = Float64Array.from(levels.time, (units) => units * msPerUnit);
    const bytes = new Float64Array(lives.count), freed = new Float64Array(lives.count), kind = new Uint8Array(lives.count);
    for (let i = 0; i < lives.count; i++) {
      bytes[i] = lives.tera[i] * 2 ** 40 + lives.mega[i] * 2 ** 20 + lives.rest[i];
      freed[i] = lives.made[i] + lives.length[i];
      kind[i] = lives.leak[i] ? categories - 1 : lives.category[i];
    }
    // Entry 0 is before the first event, entry e + 1 after event e.
    const curves = Array.from({ length: categories }, () => new Float64Array(count + 1));
    for (let i = 0; i < lives.count; i++) {
      curves[kind[i]][lives.made[i] + 1] += bytes[i];
      if (freed[i] < count) curves[kind[i]][freed[i] + 1] -= bytes[i];
    }
    const total = new Float64Array(count + 1);
    for (const curve of curves) {
      for (let e = 0; e <= count; e++) {
        if (e) curve[e] += curve[e - 1];
        total[e] += curve[e];
      }
    }
    const reserved = Float64Array.from(levels.reserved, (kib) => (kib ? (kib - 1) * 1024 : NaN));
    return { ...packed, count, time, made: lives.made, freed, bytes, kind, stack: lives.stack, lives, stacks, segments, curves, total, reserved,
      hasLeaks: kind.includes(categories - 1) };
  }

  // Whether a few pauses (compiling, loading) take most of the time, so that events are told apart better by their number.
  function hasLongGaps({ time, count }) {
    const gaps = Float64Array.from({ length: Math.max(0, count - 1) }, (_, i) => time[i + 1] - time[i]).sort();
    return gaps.slice(-LONG_GAPS).reduce((sum, gap) => sum + gap, 0) > MAX_GAP_SHARE * (time.at(-1) ?? 0);
  }

  async function create(data) {
    const { texts, kinds } = await columns.unpackJson(data.frames), categories = data.categories;
    const loaded = new Map();
    const load = async (index) => {
      if (!loaded.has(index)) loaded.set(index, await unpackTrack(data.tracks[index], categories.length));
      return loaded.get(index);
    };
    const state = { track: null, index: 0, row: 0, from: null, hidden: new Set(), byEvent: false, view: [0, 1], leaks: false, against: null, againstRow: 0,
      shrunk: false, frames: "python", inverted: false, zoom: [], search: "", blocks: false, opened: null };
    let onPaper = false;

    // The axis: event e stands at its time or at its number; the view is a part of it.
    const end = () => Math.max(state.byEvent ? state.track.count : (state.track.time.at(-1) ?? 0), 1e-9);
    const positionOf = (row) => (row < 0 ? 0 : state.byEvent ? row + 1 : state.track.time[row]);
    function rowAt(position) {
      if (state.byEvent) return Math.max(-1, Math.min(state.track.count - 1, Math.floor(position) - 1));
      let low = 0, high = state.track.count;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (state.track.time[middle] <= position) low = middle + 1; else high = middle;
      }
      return low - 1;
    }
    const timeText = (row) => {
      if (row < 0) return "before the first event";
      const step = state.track.steps.findLast(([, first]) => first <= row);
      return `${charts.timeText ? `${state.track.time[row].toFixed(3)} ms` : ""}, event ${(row + 1).toLocaleString("en")} of ${state.track.count.toLocaleString("en")}${step ? `, step ${step[0]}` : ""}`;
    };

    const curve = byId("curve"), map = byId("map");
    function canvasContext(canvas, height) {
      const ratio = onPaper ? 2 : Math.min(devicePixelRatio || 1, 2), width = onPaper ? PAPER_PX : canvas.parentElement.clientWidth || 300;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = onPaper ? "auto" : `${height}px`;
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      context.font = "11px system-ui, sans-serif";
      return [context, width];
    }
    const xOf = (position, width) => LEFT_PX + (position - state.view[0]) / (state.view[1] - state.view[0]) * (width - LEFT_PX);
    const positionAt = (x, width) => state.view[0] + Math.max(0, Math.min(1, (x - LEFT_PX) / (width - LEFT_PX))) * (state.view[1] - state.view[0]);
    const shownTotal = (entry) => {
      let sum = 0;
      for (let kind = 0; kind < categories.length; kind++) if (!state.hidden.has(kind)) sum += state.track.curves[kind][entry];
      return sum;
    };

    function ticksTo(most) {
      const raw = most / 4 || 1, power = 10 ** Math.floor(Math.log10(raw)), step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
      return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
    }

    function drawCurve() {
      const { track } = state;
      if (!track) return;
      curve.hidden = !track.count;
      if (!track.count) return;
      const [context, width] = canvasContext(curve, CURVE_PX), bottom = CURVE_PX - AXIS_PX, style = styles();
      const [ink, soft, line] = ["--ink", "--soft", "--line"].map((name) => style.getPropertyValue(name));
      let most = 1;
      for (let e = 0; e <= track.count; e++) most = Math.max(most, shownTotal(e));
      if (!state.hidden.size) for (const level of track.reserved) if (level > most) most = level;
      most *= 1.04;
      const yOf = (bytes) => bottom - bytes / most * (bottom - 8);
      context.textAlign = "right";
      for (const tick of ticksTo(most)) {
        context.fillStyle = line;
        context.fillRect(LEFT_PX, yOf(tick), width - LEFT_PX, 1);
        context.fillStyle = soft;
        context.fillText(bytesText(tick), LEFT_PX - 6, yOf(tick) + 4);
      }
      // Of the events that fall on one pixel the fullest is drawn, so that no peak is lost.
      let row = rowAt(state.view[0]), lastReserved = null;
      for (let x = LEFT_PX; x < width; x++) {
        const until = rowAt(positionAt(x + 1, width));
        let entry = Math.max(0, row + 1);
        for (let e = row + 2; e <= until + 1; e++) if (track.total[e] > track.total[entry]) entry = e;
        let base = 0;
        for (let kind = 0; kind < categories.length; kind++) {
          const bytes = state.hidden.has(kind) ? 0 : track.curves[kind][entry];
          if (bytes <= 0) continue;
          context.fillStyle = categories[kind].colour;
          context.fillRect(x, yOf(base + bytes), 1.5, yOf(base) - yOf(base + bytes));
          base += bytes;
        }
        const reserved = track.reserved[Math.max(0, entry - 1)];
        if (!state.hidden.size && reserved === reserved) {
          const y = yOf(reserved);
          context.fillStyle = ink;
          context.fillRect(x, Math.min(y, lastReserved ?? y), 1, Math.max(1, Math.abs(y - (lastReserved ?? y))));
          lastReserved = y;
        }
        row = until;
      }
      context.textAlign = "left";
      let freeFrom = LEFT_PX;
      for (const [step, first] of track.steps) {
        const x = xOf(positionOf(first), width);
        if (x < LEFT_PX || x > width) continue;
        context.fillStyle = soft;
        context.fillRect(x, 4, 1, bottom);
        if (x >= freeFrom && x + 46 < width) {
          context.fillText(`step ${step}`, x + 3, CURVE_PX - 5);
          freeFrom = x + 56;
        }
      }
      if (!track.steps.length) {
        context.fillStyle = soft;
        const unit = state.byEvent ? "events" : "ms";
        context.fillText(`${state.view[0].toFixed(state.byEvent ? 0 : 1)}`, LEFT_PX, CURVE_PX - 5);
        context.textAlign = "right";
        context.fillText(`${state.view[1].toFixed(state.byEvent ? 0 : 1)} ${unit}`, width - 2, CURVE_PX - 5);
      }
      if (state.from !== null) {
        const [left, right] = [state.from, state.row].map((chosen) => xOf(positionOf(chosen), width));
        context.globalAlpha = 0.16;
        context.fillStyle = ink;
        context.fillRect(left, 0, Math.max(1, right - left), bottom);
        context.globalAlpha = 1;
      }
      const x = xOf(positionOf(state.row), width);
      if (x >= LEFT_PX - 1 && x <= width + 1) {
        context.fillStyle = ink;
        context.fillRect(Math.min(x, width - 2) - 0.5, 0, 2, bottom);
      }
    }

    // What is looked at, as entries { stack texts, kind, bytes, count, life }: at the moment, grown since another, or against another GPU.
    function livingAt(track, row) {
      const living = [];
      for (let i = 0; i < track.lives.count; i++) if (track.made[i] <= row && track.freed[i] > row) living.push(i);
      return living;
    }
    function chosenLives() {
      const { track, row, from } = state;
      let living = livingAt(track, row);
      if (from !== null) living = state.shrunk ? livingAt(track, from).filter((i) => track.freed[i] <= row) : living.filter((i) => track.made[i] > from);
      if (state.leaks) living = living.filter((i) => track.kind[i] === categories.length - 1);
      return living.filter((i) => !state.hidden.has(track.kind[i]));
    }
    const framesOf = (track, stack) => (stack ? track.stacks.frames[stack - 1] : []);
    const lineOf = (track, stack) => (stack && track.stacks.lines[stack - 1] >= 0 ? texts[track.stacks.lines[stack - 1]] : "(no Python stack)");
    function entries(track, lives) {
      const byStack = new Map();
      for (const i of lives) {
        const key = track.stack[i] * 16 + track.kind[i], entry = byStack.get(key);
        if (entry) { entry.bytes += track.bytes[i]; entry.count += 1; }
        else byStack.set(key, { frames: framesOf(track, track.stack[i]), line: lineOf(track, track.stack[i]), kind: track.kind[i], bytes: track.bytes[i], count: 1 });
      }
      return [...byStack.values()];
    }
    // Stacks are the same in two recordings if their frames are: bytes become those that were added, or taken away.
    function changes(now, before) {
      const keyOf = (entry) => `${entry.kind}:${entry.frames.join(",")}`, all = new Map();
      for (const entry of now) { const key = keyOf(entry), old = all.get(key); all.set(key, { ...entry, bytes: entry.bytes + (old?.bytes ?? 0), count: entry.count + (old?.count ?? 0) }); }
      for (const entry of before) { const key = keyOf(entry), old = all.get(key) ?? { ...entry, bytes: 0, count: 0 }; all.set(key, { ...old, bytes: old.bytes - entry.bytes, count: old.count - entry.count }); }
      const sign = state.shrunk ? -1 : 1;
      return [...all.values()].map((entry) => ({ ...entry, bytes: sign * entry.bytes, count: sign * entry.count })).filter(({ bytes }) => bytes > 0);
    }
    function chosenEntries() {
      const own = entries(state.track, chosenLives());
      if (!state.against) return own;
      const lives = livingAt(state.against, state.againstRow).filter((i) => !state.hidden.has(state.against.kind[i]));
      return changes(own, entries(state.against, lives));
    }

    function tree(list) {
      const root = { text: -1, name: "all", bytes: 0, kinds: new Map(), children: new Map() };
      const isShown = (frame) => state.frames === "all" || (state.frames === "own" ? kinds[frame] === "own" : kinds[frame] !== "compiled");
      for (const entry of list) {
        let frames = entry.frames.filter(isShown), node = root;
        if (state.inverted) frames = [...frames].reverse();
        if (!frames.length) frames = [-2 - entry.kind];
        for (const frame of [null, ...frames]) {
          if (frame !== null) {
            if (!node.children.has(frame)) {
              const name = frame <= -2 ? `no such stack: ${categories[-2 - frame].name}` : texts[frame];
              node.children.set(frame, { text: frame, name, bytes: 0, kinds: new Map(), children: new Map() });
            }
            node = node.children.get(frame);
          }
          node.bytes += entry.bytes;
          node.kinds.set(entry.kind, (node.kinds.get(entry.kind) ?? 0) + entry.bytes);
        }
      }
      return root;
    }
    const colourOf = (node) => {
      const [kind, bytes] = [...node.kinds].reduce((most, entry) => (entry[1] > most[1] ? entry : most), [0, -1]);
      return bytes >= 0.9 * node.bytes ? categories[kind].colour : "#b9c2ca";
    };

    function drawFlame(list) {
      const element = byId("flame"), root = tree(list), path = [root];
      for (const text of state.zoom) {
        const next = path.at(-1).children.get(text);
        if (!next) break;
        path.push(next);
      }
      state.zoom = path.slice(1).map(({ text }) => text);
      byId("unzoom").hidden = !state.zoom.length;
      const whole = root.bytes || 1, focus = path.at(-1), boxes = [], query = state.search.toLowerCase();
      const matches = (node) => query && node.name.toLowerCase().includes(query);
      let found = 0;
      const collect = (node, isInside) => {
        const isFound = matches(node);
        if (isFound && !isInside) found += node.bytes;
        for (const child of node.children.values()) collect(child, isInside || isFound);
      };
      if (query) collect(root, false);
      path.slice(0, -1).forEach((node, depth) => boxes.push({ node, depth, left: 0, width: 1, zoom: state.zoom.slice(0, depth), around: true }));
      const pending = [{ node: focus, depth: path.length - 1, left: 0, zoom: state.zoom }];
      while (pending.length && boxes.length < MAX_BOXES) {
        const box = pending.shift(), width = box.node.bytes / (focus.bytes || 1);
        if (width < MIN_BOX_SHARE) continue;
        boxes.push({ ...box, width });
        let { left } = box;
        for (const child of [...box.node.children.values()].sort((a, b) => b.bytes - a.bytes)) {
          pending.push({ node: child, depth: box.depth + 1, left, zoom: [...box.zoom, child.text] });
          left += child.bytes / (focus.bytes || 1);
        }
      }
      element.classList.toggle("searched", Boolean(query));
      const depth = boxes.reduce((most, box) => Math.max(most, box.depth), 0) + 1;
      const filler = document.createElement("div");
      filler.style.height = `${depth * ROW_PX}px`;
      element.replaceChildren(filler, ...boxes.map(({ node, depth: level, left, width, zoom, around }) => {
        const button = document.createElement("button"), colour = colourOf(node);
        const text = `${node.name}\n${bytesText(node.bytes)}, ${(100 * node.bytes / whole).toFixed(1)} %`;
        button.type = "button";
        button.textContent = `${node.name.split("/").at(-1)} ${bytesText(node.bytes)}`;
        button.setAttribute("aria-label", text);
        Object.assign(button.style, { left: `${100 * left}%`, width: `${100 * width}%`, top: `${level * ROW_PX}px`, background: colour, color: isDark(colour) ? "#ffffff" : "#16202a" });
        if (around) button.classList.add("around");
        if (matches(node)) button.classList.add("found");
        button.onclick = () => { state.zoom = zoom; charts.showTip(null); drawChosen(); };
        button.onpointermove = (event) => charts.showTip(text, event.clientX, event.clientY);
        button.onpointerleave = () => charts.showTip(null);
        return button;
      }));
      byId("found").textContent = query ? `${bytesText(found)}, ${(100 * found / whole).toFixed(1)} % of these bytes` : "";
      byId("flame-note").textContent = `${bytesText(root.bytes)}; width: bytes, colour: purpose${state.inverted ? "; the line that allocates is on top" : ""}`;
    }

    function cells(...values) {
      return values.map((value, i) => {
        const cell = document.createElement("td");
        if (i === 0) cell.className = "line"; else if (typeof value !== "number" && i === 1) cell.className = "word";
        cell.append(...[value].flat());
        return cell;
      });
    }
    const keyOf = (kind) => {
      const key = document.createElement("i");
      key.className = "key";
      key.style.background = categories[kind].colour;
      return [key, categories[kind].name];
    };
    function drawTable(list) {
      const { track } = state, table = byId("table"), single = state.blocks && !state.against;
      let rows;
      if (single) {
        const lives = chosenLives().sort((a, b) => track.bytes[b] - track.bytes[a]).slice(0, MAX_ROWS);
        rows = lives.map((i) => ({ frames: framesOf(track, track.stack[i]), cells: [lineOf(track, track.stack[i]), keyOf(track.kind[i]), bytesText(track.bytes[i]),
          track.made[i] < 0 ? "before" : `${track.time[track.made[i]].toFixed(1)} ms`, track.freed[i] >= track.count ? "never" : `${track.time[track.freed[i]].toFixed(1)} ms`] }));
      } else {
        const byLine = new Map();
        for (const entry of list) {
          const key = `${entry.kind}:${entry.line}`, row = byLine.get(key);
          if (!row) byLine.set(key, { ...entry, largest: entry.bytes });
          else {
            if (entry.bytes > row.largest) Object.assign(row, { frames: entry.frames, largest: entry.bytes });
            row.bytes += entry.bytes;
            row.count += entry.count;
          }
        }
        const sorted = [...byLine.values()].sort((a, b) => b.bytes - a.bytes).slice(0, MAX_ROWS);
        rows = sorted.map((entry) => ({ frames: entry.frames, cells: [entry.line, keyOf(entry.kind), bytesText(entry.bytes), entry.count.toLocaleString("en")] }));
      }
      const heads = single ? ["line", "holds", "size", "made", "freed"] : ["line", "holds", "bytes", "blocks"], head = document.createElement("tr");
      head.append(...heads.map((text, i) => {
        const cell = document.createElement("th");
        cell.scope = "col";
        cell.textContent = text;
        if (i < 2) cell.className = "word";
        return cell;
      }));
      table.tHead.replaceChildren(head);
      table.tBodies[0].replaceChildren(...rows.flatMap((row, number) => {
        const element = document.createElement("tr");
        element.append(...cells(...row.cells));
        if (!row.frames.length) return [element];
        element.dataset.stack = "";
        element.tabIndex = 0;
        element.title = "show its stack";
        element.onclick = () => { state.opened = state.opened === number ? null : number; drawTable(list); };
        element.onkeydown = (event) => { if (event.key === "Enter") element.onclick(); };
        if (state.opened !== number) return [element];
        const below = document.createElement("tr"), cell = document.createElement("td"), frames = document.createElement("ol");
        cell.colSpan = heads.length;
        cell.className = "line";
        frames.append(...[...row.frames].reverse().map((frame) => { const item = document.createElement("li"); item.textContent = texts[frame]; return item; }));
        cell.append(frames);
        below.append(cell);
        return [element, below];
      }));
      byId("table-note").textContent = rows.length === MAX_ROWS ? `the first ${MAX_ROWS}; a row shows its stack` : "a row shows its stack";
    }

    // The segments of the moment, the largest first: blocks in use by purpose, the rest is free.
    let mapRows = [];
    function drawMap() {
      const { track, row } = state, section = byId("map-section");
      if (!track) return;
      section.hidden = !track.segments || Boolean(state.against);
      if (section.hidden) return;
      const { segments } = track, sizes = [];
      for (let s = 0; s < segments.count; s++) {
        if (segments.made[s] <= row && segments.made[s] + segments.length[s] > row) sizes.push({ segment: s, bytes: segments.mega[s] * 2 ** 20 + segments.rest[s], blocks: [] });
      }
      const bySegment = new Map(sizes.map((entry) => [entry.segment, entry]));
      for (const i of livingAt(track, row)) bySegment.get(track.lives.segment[i] - 1)?.blocks.push(i);
      sizes.sort((a, b) => b.bytes - a.bytes || a.segment - b.segment);
      mapRows = sizes.slice(0, MAX_SEGMENTS);
      const free = sizes.reduce((sum, { bytes, blocks }) => sum + (blocks.length ? bytes - blocks.reduce((used, i) => used + track.bytes[i], 0) : 0), 0);
      const streams = new Set(sizes.map(({ segment }) => segments.stream[segment])).size;
      byId("map-note").textContent = `${sizes.length} segments${streams > 1 ? ` of ${streams} streams` : ""}, ${bytesText(free)} free beside blocks in use`
        + (sizes.length > MAX_SEGMENTS ? `; the largest ${MAX_SEGMENTS} are drawn` : "");
      const [context, width] = canvasContext(map, Math.max(1, mapRows.length) * (SEGMENT_PX + 2)), most = mapRows[0]?.bytes ?? 1, idle = styles().getPropertyValue("--idle");
      mapRows.forEach(({ bytes, blocks }, number) => {
        const y = number * (SEGMENT_PX + 2), scale = width / most;
        context.fillStyle = idle;
        context.fillRect(0, y, Math.max(1, bytes * scale), SEGMENT_PX);
        for (const i of blocks) {
          const at = track.lives.at_mega[i] * 2 ** 20 + track.lives.at_rest[i], length = track.bytes[i] * scale;
          context.fillStyle = categories[track.kind[i]].colour;
          context.fillRect(at * scale, y, Math.max(0.5, length - (length > MAX_GAP_PX ? 1 : 0)), SEGMENT_PX);
        }
      });
    }
    map.onpointermove = (event) => {
      const { track } = state, area = map.getBoundingClientRect(), entry = mapRows[Math.floor((event.clientY - area.top) / (SEGMENT_PX + 2))];
      if (!entry) return charts.showTip(null);
      const at = (event.clientX - area.left) / area.width * mapRows[0].bytes;
      const block = entry.blocks.find((i) => { const start = track.lives.at_mega[i] * 2 ** 20 + track.lives.at_rest[i]; return start <= at && at < start + track.bytes[i]; });
      const segment = `segment of ${bytesText(entry.bytes)}`;
      if (at > entry.bytes) return charts.showTip(null);
      return charts.showTip(block === undefined ? `free\n${segment}` : `${bytesText(track.bytes[block])} ${categories[track.kind[block]].name}\n${lineOf(track, track.stack[block])}\n${segment}`, event.clientX, event.clientY);
    };
    map.onpointerleave = () => charts.showTip(null);

    function momentText() {
      const { track, row, from } = state, entry = row + 1;
      if (state.against) {
        const before = state.against.total[state.againstRow + 1], now = track.total[entry];
        return `${state.against.name}: ${bytesText(before)}; ${track.name}: ${bytesText(now)} (${now >= before ? "+" : ""}${bytesText(now - before)}). Below: what ${state.shrunk ? "the second has less" : "the second has more"}.`;
      }
      if (from !== null) {
        const grown = track.total[entry] - track.total[from + 1];
        return `From ${timeText(from)} to ${timeText(row)}: ${grown >= 0 ? "+" : ""}${bytesText(grown)}. Below: what was ${state.shrunk ? "freed in between" : "allocated in between and is still there"}.`;
      }
      const parts = categories.map(({ name }, kind) => [name, track.curves[kind][entry]]).filter(([, bytes]) => bytes > 0).sort((a, b) => b[1] - a[1]);
      const reserved = track.reserved[Math.max(0, row)], held = reserved === reserved ? ` of ${bytesText(reserved)} reserved` : "";
      const when = track.count ? `At ${timeText(row)}` : "When it was written";
      return `${when}: ${bytesText(track.total[entry])} in tensors${held}: ${parts.map(([name, bytes]) => `${name} ${bytesText(bytes)}`).join(", ")}.${track.left_out ? ` ${track.left_out}.` : ""}`;
    }

    function drawChosen() {
      const list = chosenEntries();
      drawFlame(list);
      drawTable(list);
    }
    function draw() {
      drawCurve();
      byId("moment").textContent = momentText();
      drawChosen();
      drawMap();
      byId("shrunk").hidden = state.from === null && !state.against;
      byId("shrunk").textContent = state.against ? "what shrank" : "what was freed";
      for (const [name, value] of [["by-event", state.byEvent], ["leaks", state.leaks], ["shrunk", state.shrunk], ["invert", state.inverted], ["lines", !state.blocks], ["blocks", state.blocks]]) {
        byId(name).setAttribute("aria-pressed", String(value));
      }
    }
    function choose(row, from = null) {
      const last = state.track.count - 1;
      state.row = Math.max(-1, Math.min(last, row));
      state.from = from === null ? null : Math.max(-1, Math.min(last, from));
      if (from === null) state.shrunk = state.against ? state.shrunk : false;
      state.opened = null;
      draw();
    }

    async function show(index) {
      state.index = index;
      state.track = await load(index);
      const { track } = state;
      state.leaks = false;
      state.zoom = [];
      state.byEvent = hasLongGaps(track);
      state.view = [0, end()];
      const present = new Set([...track.kind, ...(state.against?.kind ?? [])]);
      for (const item of byId("legend").children) item.hidden = item.dataset.kind !== undefined && !present.has(Number(item.dataset.kind));
      byId("failed").hidden = track.failed === null || track.failed === undefined;
      byId("leaks").hidden = !track.hasLeaks;
      byId("steps").hidden = track.steps.length < 2;
      for (const name of ["by-event", "zoom-in", "zoom-out", "zoom-all", "peak", "end"]) byId(name).hidden = !track.count;
      const options = () => track.steps.map(([step, row]) => new Option(step, row));
      byId("from").replaceChildren(new Option("–", ""), ...options());
      byId("to").replaceChildren(new Option("–", ""), ...options(), new Option("the end", track.count - 1));
      choose(track.failed ?? track.peak);
    }
    async function compareWith(index) {
      state.against = index === null ? null : await load(index);
      if (state.against) state.againstRow = state.against.failed ?? state.against.peak;
    }

    // Controls.
    const trackField = byId("track");
    trackField.append(...data.tracks.map(({ name }, i) => new Option(name, i)));
    byId("track-label").hidden = data.tracks.length < 2;
    trackField.onchange = async () => {
      if (data.compares) {
        const half = data.tracks.length / 2, index = Number(trackField.value);
        if (index >= half) { await compareWith(index - half); byId("against").value = String(index - half); } else { await compareWith(null); byId("against").value = ""; }
      }
      await show(Number(trackField.value));
    };
    const againstField = byId("against");
    againstField.append(new Option("nothing", ""), ...data.tracks.map(({ name }, i) => new Option(name, i)));
    byId("change").hidden = data.tracks.length < 2;
    againstField.onchange = async () => { await compareWith(againstField.value === "" ? null : Number(againstField.value)); state.shrunk = false; choose(state.row); };
    byId("by-event").onclick = () => { state.byEvent = !state.byEvent; state.view = [0, end()]; draw(); };
    const zoomTo = (from, to) => {
      const least = end() / 1e6, low = Math.max(0, from), high = Math.min(end(), to);
      if (high - low > least) state.view = [low, high];
      drawCurve();
    };
    const zoomBy = (factor, middle = positionOf(state.row)) => {
      const center = middle < state.view[0] || middle > state.view[1] ? (state.view[0] + state.view[1]) / 2 : middle;
      zoomTo(center - (center - state.view[0]) * factor, center + (state.view[1] - center) * factor);
    };
    byId("zoom-in").onclick = () => zoomBy(0.5);
    byId("zoom-out").onclick = () => zoomBy(2);
    byId("zoom-all").onclick = () => zoomTo(0, end());
    byId("peak").onclick = () => choose(state.track.peak);
    byId("failed").onclick = () => choose(state.track.failed);
    byId("end").onclick = () => choose(state.track.count - 1);
    byId("leaks").onclick = () => { state.leaks = !state.leaks; choose(state.leaks ? state.track.count - 1 : state.row); };
    byId("shrunk").onclick = () => { state.shrunk = !state.shrunk; draw(); };
    const growth = () => {
      const [from, to] = [byId("from").value, byId("to").value];
      if (from !== "" && to !== "") choose(Math.max(from, to) - (to === String(state.track.count - 1) ? 0 : 1), Math.min(from, to) - 1);
    };
    byId("from").onchange = byId("to").onchange = growth;
    byId("search").oninput = (event) => { state.search = event.target.value; drawChosen(); };
    byId("invert").onclick = () => { state.inverted = !state.inverted; state.zoom = []; draw(); };
    byId("frames").onchange = (event) => { state.frames = event.target.value; state.zoom = []; drawChosen(); };
    byId("unzoom").onclick = () => { state.zoom = []; drawChosen(); };
    byId("lines").onclick = () => { state.blocks = false; state.opened = null; draw(); };
    byId("blocks").onclick = () => { state.blocks = true; state.opened = null; draw(); };
    byId("legend").append(...categories.map(({ name, colour }, kind) => {
      const item = document.createElement("li"), button = document.createElement("button"), key = document.createElement("i");
      key.style.background = colour;
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(key, name);
      button.onclick = () => {
        if (!state.hidden.delete(kind)) state.hidden.add(kind);
        button.setAttribute("aria-pressed", String(!state.hidden.has(kind)));
        draw();
      };
      item.append(button);
      item.dataset.kind = kind;
      return item;
    }));
    const reservedItem = document.createElement("li"), reservedKey = document.createElement("i");
    reservedKey.style.cssText = "background:var(--ink);height:2px";
    reservedItem.append(reservedKey, "reserved");
    byId("legend").append(reservedItem);

    // The mouse on the curve: a click is a moment, a drag is a range, with shift a zoom.
    let pressed = null;
    const pointed = (event) => rowAt(positionAt(event.clientX - curve.getBoundingClientRect().left, curve.clientWidth));
    curve.onpointerdown = (event) => { if (event.button === 0) pressed = { x: event.clientX, row: pointed(event), zooms: event.shiftKey }; };
    curve.onpointermove = (event) => {
      const row = pointed(event);
      if (event.pointerType === "mouse") charts.showTip(`${timeText(row)}\n${bytesText(state.track.total[row + 1])} in tensors`, event.clientX, event.clientY);
      if (pressed && Math.abs(event.clientX - pressed.x) > 4 && !pressed.zooms) {
        state.from = Math.min(pressed.row, row);
        state.row = Math.max(pressed.row, row);
        drawCurve();
      }
    };
    const release = (event) => {
      if (!pressed) return;
      const row = pointed(event), { x, row: start, zooms } = pressed;
      pressed = null;
      if (Math.abs(event.clientX - x) <= 4) choose(row);
      else if (zooms) zoomTo(positionOf(Math.min(start, row)), positionOf(Math.max(start, row)));
      else choose(Math.max(start, row), Math.min(start, row));
    };
    curve.onpointerup = release;
    curve.onpointercancel = () => { pressed = null; };
    curve.onpointerleave = (event) => { charts.showTip(null); release(event); };
    curve.onkeydown = (event) => {
      const moves = { ArrowLeft: () => choose(state.row - 1), ArrowRight: () => choose(state.row + 1), Home: () => choose(0), End: () => choose(state.track.count - 1),
        "+": () => zoomBy(0.5), "-": () => zoomBy(2), p: () => choose(state.track.peak) };
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      move();
    };

    const print = (paper) => {
      if (onPaper === paper) return;
      onPaper = paper;
      document.documentElement.classList.toggle("printing", paper);
      drawCurve();
      drawMap();
    };
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
    matchMedia("print").addEventListener("change", ({ matches }) => print(matches));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawCurve(); drawMap(); });
    let width = 0;
    new ResizeObserver(() => {
      const now = byId("view").clientWidth;
      if (now === width || onPaper) return;
      width = now;
      drawCurve();
      drawMap();
    }).observe(byId("view"));

    let first = 0;
    if (data.compares) { first = data.tracks.length / 2; await compareWith(0); againstField.value = "0"; trackField.value = String(first); }
    await show(first);
    return { state, choose };
  }

  return { create };
})();
