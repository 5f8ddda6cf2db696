// The timeline of all ranks: a group of rows per rank (critical path, cells, lanes of GPU work, memory, host), the selected
// event with arrows to the operations matched on other ranks, search marks, and the view as text for links.
// A source is one run on the page: { run, name }; a diff has two, whose times were shifted to a common start, and a run whose
// ranks have several processes has one for each role.
const timelines = (() => {
  const MAX_OPEN_RANKS = 8; // of more ranks (over all sources), each is one line until it is opened
  const MAX_RANK_BUTTONS = 16; // of more ranks, a field takes their numbers instead
  const MAX_PINNED_AT_FIRST = 3;
  const MAX_HOST_DEPTH = 24; // ranges of the host below each other; deeper ones are drawn over the last
  // Height of a rank's one line, by the number of ranks.
  const lineHeight = (count) => (count <= 16 ? 18 : count <= 64 ? 13 : 10);
  const HEIGHTS = { path: 7, cells: 17, compute: 24, lane: 13, host: 11, memory: 34 };
  const DIM = { name: "", colour: "dim" }; // events that a search does not name

  // The kinds of cells over all pipelines and steps of a schedule, each once.
  const kindKey = ({ name, colour }) => `${name} ${colour}`;
  const cellKinds = (schedule) => [...new Map((schedule?.choices || []).flatMap(({ kinds }) => kinds).map((kind) => [kindKey(kind), kind])).values()];

  // The measured cells of all pipelines and steps, as boxes on the timeline's axis, in order of start.
  async function measuredCells({ schedule, run }) {
    const numbers = new Map(cellKinds(schedule).map((kind, number) => [kindKey(kind), number])), all = [];
    for (const { kinds, ranks, origin_ns, sections } of schedule.choices) {
      const boxes = await columns.unpackTimes(sections[0].boxes), shift = Number(BigInt(origin_ns) - BigInt(run.data.origin_ns)) / 1e6;
      for (let i = 0; i < boxes.count; i++) {
        if (boxes.stage[i] < 0) continue; // the time outside cells
        all.push({
          start: boxes.start[i] + shift, end: boxes.end[i] + shift, rank: ranks[boxes.row[i]], part: boxes.part[i],
          kind: numbers.get(kindKey(kinds[boxes.kind[i]])), stage: boxes.stage[i], microbatch: boxes.microbatch[i],
        });
      }
    }
    all.sort((a, b) => a.start - b.start);
    const column = (name, type) => type.from(all, (box) => box[name]);
    return {
      count: all.length, start: column("start", Float64Array), end: column("end", Float64Array), rank: column("rank", Int32Array),
      part: column("part", Uint8Array), kind: column("kind", Uint8Array), stage: column("stage", Int32Array), microbatch: column("microbatch", Int32Array),
    };
  }

  // Numbers of a text such as "0-7, 12"; null if it is no such text.
  function parseRanks(text, ranks) {
    const parts = text.split(/[\s,]+/).filter(Boolean).map((part) => part.match(/^(\d+)(?:[-–](\d+))?$/));
    if (!parts.length || parts.some((part) => !part)) return null;
    return ranks.filter((rank) => parts.some(([, first, last]) => rank >= Number(first) && rank <= Number(last ?? first)));
  }
  // Ranks as such a text, runs of numbers joined.
  function rankText(numbers) {
    const runs = [];
    for (const rank of [...numbers].sort((a, b) => a - b)) {
      if (runs.length && runs.at(-1)[1] === rank - 1) runs.at(-1)[1] = rank; else runs.push([rank, rank]);
    }
    return runs.map(([first, last]) => (first === last ? String(first) : `${first}-${last}`)).join(", ");
  }

  // options: { element, legend, sources, rankButtons, laneButtons, details(selection), changed(), colour(source, rank, event) }
  function create(options) {
    const { element, sources } = options, first = sources[0].run.data;
    const labelNames = [...new Set(sources.flatMap(({ run }) => run.data.labels.map(({ name }) => name)))];
    const colourOf = new Map(sources.flatMap(({ run }) => run.data.labels.map(({ name, colour }) => [name, colour])));
    const kinds = labelNames.map((name) => ({ name, colour: colourOf.get(name) }));
    const extraKind = kinds.length; // kinds that options.colour may give to events instead of their label
    kinds.push(...(options.extraKinds || []));
    const eventKinds = kinds.length;
    const hostKind = kinds.length;
    kinds.push(...first.host.map(({ name, colour }) => ({ name: `host: ${name}`, colour })));
    const cellKind = sources.map(({ schedule }) => {
      const offset = kinds.length;
      kinds.push(...cellKinds(schedule).map(({ name, colour }) => ({ name: "", colour, cell: name })));
      return offset;
    });
    const pathKind = kinds.push({ name: "", colour: "ink" }) - 1, dimKind = kinds.push(DIM) - 1;
    const ranks = [...new Set(sources.flatMap(({ run }) => run.ranks.map(({ rank }) => rank)))].sort((a, b) => a - b);
    const state = {
      ranks: new Set(ranks), lanes: new Set(["path", "cells", "memory", ...(ranks.length * sources.length <= 4 ? ["host"] : [])]),
      open: new Set(), // "source.rank" of ranks with all their rows; the others are one line
      pinned: new Set(), // ranks that stand first
      shown: new Set(sources), marked: [], selected: null, query: "", found: null, piece: -1, // the piece of the path shown last
    };
    const keyOf = (s, number) => `${s}.${number}`, different = options.different ?? new Map(); // rank → how it differs
    const isLarge = ranks.length * sources.length > MAX_OPEN_RANKS;
    if (!isLarge) sources.forEach((_, s) => ranks.forEach((number) => state.open.add(keyOf(s, number))));
    if (isLarge) [...different.keys()].filter((number) => ranks.includes(number)).slice(0, MAX_PINNED_AT_FIRST).forEach((number) => state.pinned.add(number));
    options.pinned?.forEach((number) => state.pinned.add(number));
    let rowOf = new Map(); // "source.rank.lane" → row
    let chart = null;

    // What a piece of the critical path is: its kind, label and description.
    const pieceName = (path, i) => [path.texts[path.what[i]], path.texts[path.label[i]], path.texts[path.description[i]]].filter(Boolean).join(", ");

    // ---- rows
    const ms = (value) => `${value.toFixed(value < 0.1 ? 4 : 3)} ms`;
    const timesOf = (boxes, i) => `${boxes.start[i].toFixed(3)} to ${boxes.end[i].toFixed(3)} ms\n${ms(boxes.end[i] - boxes.start[i])} long`;
    const rankTitle = (source, rank) => `rank ${rank.rank}${sources.length > 1 ? ` · ${source.name}` : ""}`;

    function eventRow(source, rank, lane, indices) {
      const { run } = source, { events } = rank;
      const made = tracks.makeTracks(events, indices);
      const describe = (i) => {
        const number = events.description[i], name = run.text("name", number), pass = run.text("pass", number);
        const what = name === null ? "merged interval" : runEvents.shortName(name);
        const operation = rank.operations.get(i);
        const wait = operation?.wait ? `\nwaits ${ms(operation.wait)} for other ranks` : "";
        const note = options.describe?.(source, rank, i) ?? "";
        return `${what}\n${run.text("label", number)}${pass ? ` (${pass} pass)` : ""} · ${rankTitle(source, rank)}\n${timesOf(events, i)}${wait}${note}`;
      };
      const height = lane === "compute" ? HEIGHTS.compute + 12 * (made.length - 1) : HEIGHTS.lane * made.length;
      return {
        name: lane, height, tracks: made, describe, source, rank, events: true,
        text: (i) => runEvents.shortName(run.text("name", events.description[i]) ?? run.text("label", events.description[i])),
      };
    }

    // The rows of a lane of the host, one per thread: inner ranges below those around them.
    function hostRows(source, rank, lane) {
      const { host } = rank, byThread = new Map();
      for (let i = 0; i < host.count; i++) {
        if (host.lane[i] !== lane) continue;
        if (!byThread.has(host.thread[i])) byThread.set(host.thread[i], []);
        byThread.get(host.thread[i]).push(i);
      }
      const { name } = first.host[lane];
      return [...byThread].sort(([one], [other]) => one - other).map(([thread, indices], i) => {
        const made = tracks.makeTracks(host, indices, MAX_HOST_DEPTH), title = i ? `${name}, thread ${thread}` : name;
        return {
          name: title, height: HEIGHTS.host * made.length, tracks: made, source, rank, host: true,
          describe: (i) => `${source.run.texts[host.name[i]] ?? ""}\nhost, ${title} · ${rankTitle(source, rank)}\n${timesOf(host, i)}`,
          text: (i) => source.run.texts[host.name[i]] ?? "",
        };
      });
    }

    // What the name of a rank's group does, and what it says.
    const groupOptions = (source, s, rank) => ({
      name: sources.length > 1 ? `${rank.rank} ${source.name}` : `rank ${rank.rank}`,
      remark: different.get(rank.rank) ?? "", pinned: state.pinned.has(rank.rank), source, rank,
      ...(ranks.length * sources.length > 1 ? {
        toggle: () => setOpen([keyOf(s, rank.rank)], !state.open.has(keyOf(s, rank.rank))),
        pin: () => setPinned(rank.rank, !state.pinned.has(rank.rank)),
      } : {}),
    });
    function lanesOf(run) { // the lane of each description
      const laneOfLabel = new Map(run.data.lanes.flatMap(({ name, labels }) => labels.map((label) => [label, name])));
      return run.laneOfDescription ??= run.described.label.map((text) => laneOfLabel.get(run.texts[text]));
    }
    // All GPU work of a rank in one line: compute is drawn above the rest, so that what is seen of the rest is exposed.
    function makeLine(source, s, rank) {
      const { run } = source, { events } = rank, lanes = lanesOf(run);
      rank.laneOfDescription = lanes;
      if (!rank.line) {
        const layers = [[], []];
        for (let i = 0; i < events.count; i++) layers[Number(lanes[events.description[i]] === "compute")].push(i);
        rank.line = tracks.makeLayers(events, layers);
      }
      const { describe } = eventRow(source, rank, "line", []);
      const row = { name: "", height: lineHeight(ranks.length * sources.length), tracks: rank.line, describe, source, rank, events: true, compact: true };
      for (const { name } of run.data.lanes) rowOf.set(`${s}.${rank.rank}.${name}`, row);
      return { ...groupOptions(source, s, rank), compact: true, rows: [row] };
    }

    function makeGroup(source, s, rank) {
      const { run } = source, rows = [], key = (lane) => `${s}.${rank.rank}.${lane}`;
      const { path, cells } = source;
      if (path && state.lanes.has("path")) {
        const indices = path.byRank.get(rank.rank) || [];
        rows.push({
          name: "path", height: HEIGHTS.path, tracks: tracks.makeTracks(path, indices), source, rank,
          describe: (i) => `on the critical path: ${pieceName(path, i)}\n${rankTitle(source, rank)}\n${timesOf(path, i)}`,
        });
      }
      if (cells && state.lanes.has("cells") && cells.byRank.has(rank.rank)) {
        rows.push({
          name: "cells", height: HEIGHTS.cells, tracks: tracks.makePartTracks(cells, cells.byRank.get(rank.rank)), source, rank,
          minTextPx: 9, centred: true, text: (i) => (cells.microbatch[i] >= 0 ? String(cells.microbatch[i]) : ""),
          describe: (i) => `${kinds[cells.opKind[i]].cell}, stage ${cells.stage[i]}, micro-batch ${cells.microbatch[i]}\n`
            + `${rankTitle(source, rank)}\n${timesOf(cells, i)}${options.describeCell?.(source, i) ?? ""}`,
        });
      }
      const laneOfDescription = lanesOf(run);
      const indices = new Map(run.data.lanes.filter(({ labels }) => labels.length).map(({ name }) => [name, []]));
      for (let i = 0; i < rank.events.count; i++) indices.get(laneOfDescription[rank.events.description[i]]).push(i);
      for (const [lane, list] of indices) {
        if (!list.length) continue;
        const row = eventRow(source, rank, lane, list);
        rowOf.set(key(lane), row);
        rows.push(row);
      }
      rank.laneOfDescription = laneOfDescription;
      if (rank.memory && state.lanes.has("memory")) {
        rows.push({
          name: "memory", height: HEIGHTS.memory, line: { points: rank.memory, top: run.data.memory_top },
          describe: (time, point) => `memory at ${time.toFixed(3)} ms\n${point[1].toPrecision(3)} GB allocated`
            + (point[2] === null ? "" : `, ${point[2].toPrecision(3)} GB reserved`),
        });
      }
      if (rank.host && state.lanes.has("host")) first.host.forEach((_, lane) => rows.push(...hostRows(source, rank, lane)));
      return { ...groupOptions(source, s, rank), rows: rows.filter(Boolean) };
    }

    // Path and cells are of all ranks together in the data: group them by rank, once.
    async function loadShared(source, s) {
      const { run } = source;
      const grouped = (boxes) => {
        boxes.byRank = new Map();
        for (let i = 0; i < boxes.count; i++) {
          if (!boxes.byRank.has(boxes.rank[i])) boxes.byRank.set(boxes.rank[i], []);
          boxes.byRank.get(boxes.rank[i]).push(i);
        }
        return boxes;
      };
      if (run.data.path) {
        source.path = grouped(await columns.unpackTimes(run.data.path.pieces));
        source.path.texts = await columns.unpackJson(run.data.path.texts);
        source.path.what = source.path.kind; // the number of its kind's name; kind is the colour
        source.path.kind = new Uint8Array(source.path.count).fill(pathKind);
      }
      if (source.schedule) {
        source.cells = grouped(await measuredCells(source));
        source.cells.opKind = Uint8Array.from(source.cells.kind, (kind) => kind + cellKind[s]);
        source.cells.kind = source.cells.opKind.slice();
      }
    }

    // The kind of each event: its label (or what options.colour says), dimmed if a search is on and does not name it.
    function colourEvents() {
      const kindOfName = new Map(labelNames.map((name, kind) => [name, kind]));
      sources.forEach((source, s) => {
        const { run, cells } = source, found = state.found?.[s];
        for (let i = 0; i < (cells?.count ?? 0); i++) {
          const extra = options.colourCell?.(source, i) ?? null;
          cells.kind[i] = extra === null ? cells.opKind[i] : extraKind + extra;
        }
        const kindOfDescription = run.described.label.map((text) => kindOfName.get(run.texts[text]));
        for (const rank of run.ranks) {
          const { events, host } = rank, asked = !found?.ranks || found.ranks.has(rank.rank);
          rank.line?.forEach(tracks.forget);
          for (let i = 0; i < events.count; i++) {
            const number = events.description[i];
            const named = !found || (asked && found.mask[number] && found.isLong(events.end[i] - events.start[i]));
            const extra = named && options.colour ? options.colour(source, rank, i) : null;
            events.kind[i] = !named ? dimKind : extra === null ? kindOfDescription[number] : extraKind + extra;
          }
          if (host) {
            host.kind ??= new Uint8Array(host.count);
            for (let i = 0; i < host.count; i++) {
              const isNamed = !found || (asked && found.hostMask[host.name[i]] && found.isLong(host.end[i] - host.start[i]));
              host.kind[i] = !isNamed ? dimKind : hostKind + host.lane[i];
            }
          }
        }
      });
      chart?.forgetBins();
      chart?.invalidate();
    }

    function rebuild() {
      rowOf = new Map();
      const shown = ranks.filter((rank) => state.ranks.has(rank));
      const ordered = [...[...state.pinned].filter((rank) => shown.includes(rank)), ...shown.filter((rank) => !state.pinned.has(rank))];
      const groups = ordered.flatMap((number) => sources.flatMap((source, s) => {
        if (!state.shown.has(source)) return [];
        const rank = source.run.ranks[source.run.rankIndex.get(number)];
        if (!rank) return [];
        return [state.open.has(keyOf(s, number)) ? makeGroup(source, s, rank) : makeLine(source, s, rank)];
      }));
      chart.setGroups(groups);
    }
    // Open ranks (keys "source.rank") or draw them in one line.
    function setOpen(keys, isOpen) {
      for (const key of keys) if (isOpen) state.open.add(key); else state.open.delete(key);
      drawButtons();
      rebuild();
      options.changed?.();
    }
    function setPinned(number, isPinned) {
      if (isPinned) state.pinned.add(number); else state.pinned.delete(number);
      rebuild();
      if (isPinned) element.scrollTop = 0;
      options.changed?.();
    }
    const allKeys = () => sources.flatMap((_, s) => ranks.map((number) => keyOf(s, number)));
    // Open a rank with all its rows; where all are open already, nothing changes.
    function openRank(number) {
      const keys = sources.map((_, s) => keyOf(s, number));
      if (!keys.every((key) => state.open.has(key))) setOpen(keys, true);
    }

    // ---- selection
    const rowOfEvent = ({ source, rank, event }) => {
      const lane = rank.laneOfDescription?.[rank.events.description[event]];
      return rowOf.get(`${sources.indexOf(source)}.${rank.rank}.${lane}`);
    };
    // Select an event, or nothing; with reveal the window moves so that it is seen.
    function select(selection, { reveal = false } = {}) {
      state.selected = selection;
      state.marked = [];
      if (selection && reveal) {
        if (!state.shown.has(selection.source)) setSources([...state.shown, selection.source]);
        if (!state.ranks.has(selection.rank.rank)) setRanks([...state.ranks, selection.rank.rank]);
        const { start, end } = selection.rank.events, [from, to] = chart.window(), { event } = selection;
        const length = end[event] - start[event], span = to - from;
        if (end[event] < from + 0.05 * span || start[event] > to - 0.05 * span || length > span || length < span / 400) {
          const wanted = Math.max(length * 8, Math.min(span, length * 200));
          const middle = (start[event] + end[event]) / 2;
          chart.setWindow(middle - wanted / 2, middle + wanted / 2);
        }
        const row = rowOfEvent(selection);
        if (row) { chart.revealRow(row); chart.moveCursor(row, event); }
      }
      chart.invalidate();
      options.details?.(selection);
      options.changed?.();
    }

    // The event that fills a stretch of a rank: the one whose start and end are both within 1 % of it; null for none.
    function eventAt(source, number, from, to) {
      const rank = source.run.ranks[source.run.rankIndex.get(number)], slack = Math.max(0.01 * (to - from), 2e-3);
      if (!rank) return null;
      const { start, end, count } = rank.events;
      let best = -1, least = slack;
      for (let i = tracks.firstAbove(start, from - slack - 1e-9); i < count && start[i] <= from + slack; i++) {
        const away = Math.max(Math.abs(start[i] - from), Math.abs(end[i] - to));
        if (away <= least) { best = i; least = away; }
      }
      return best < 0 ? null : { source, rank, event: best };
    }
    // Mark a stretch of a rank, and scroll to its rows; null: nothing is marked.
    function mark(spot) {
      state.spot = spot;
      const row = spot && chart.rows().find((one) => one.source === spot.source && one.rank?.rank === spot.rank);
      if (row) chart.revealGroup(row.group);
      chart.invalidate();
    }
    function drawSpot(context, { toX, gutter, width, scroll }) {
      const { spot } = state, row = spot && chart.rows().find((one) => one.source === spot.source && one.rank?.rank === spot.rank);
      if (!row) return;
      const left = Math.max(gutter, toX(spot.from)), right = Math.min(gutter + width, Math.max(toX(spot.to), toX(spot.from) + 3));
      if (right <= gutter || left >= gutter + width) return;
      context.fillStyle = "rgb(213 94 0 / .13)";
      context.strokeStyle = "#D55E00";
      context.lineWidth = 2;
      const top = chart.axisPx + row.group.top + 1 - scroll, height = row.group.bottom - row.group.top - 1;
      context.fillRect(left, top, right - left, height);
      context.strokeRect(left, top, right - left, height);
    }

    // Outline the selected event, and lead arrows to the events matched with it on other ranks.
    function overlay(context, { toX, yOf, ink, gutter, width, scroll, height }) {
      drawSpot(context, { toX, gutter, width, scroll });
      drawPathJumps(context, { toX, yOf, ink, gutter, width, height });
      const { selected } = state;
      const marked = selected ? [selected, ...partnersOf(selected)].map((one) => ({ boxes: one.rank.events, box: one.event, row: rowOfEvent(one) }))
        : state.marked.map(({ lane, source, box }) => ({ boxes: source[lane], box, row: sharedRow(lane, source, box) }));
      if (!marked[0]?.row) return;
      context.save();
      context.beginPath();
      context.rect(gutter, 0, width, 1e5);
      context.clip();
      const outline = (events, i, ofRow, colour) => {
        const left = toX(events.start[i]), right = Math.max(toX(events.end[i]), left + 3);
        context.strokeStyle = colour;
        context.lineWidth = 2;
        context.strokeRect(left - 1, yOf(ofRow) - 1, right - left + 2, ofRow.height + 2);
        return [(left + right) / 2, yOf(ofRow) + ofRow.height / 2];
      };
      const [x, y] = outline(marked[0].boxes, marked[0].box, marked[0].row, marked[0].row.name === "path" ? "#D55E00" : ink);
      for (const { boxes, box, row } of marked.slice(1)) {
        if (!row) continue;
        const [x2, y2] = outline(boxes, box, row, "#D55E00");
        context.strokeStyle = "#D55E00";
        context.lineWidth = 1.5;
        context.beginPath();
        context.moveTo(x, y);
        context.bezierCurveTo(x, (y + y2) / 2, x2, (y + y2) / 2, x2, y2);
        context.stroke();
        context.beginPath(); // the arrow's head
        context.arc(x2, y2, 3, 0, 7);
        context.fillStyle = "#D55E00";
        context.fill();
      }
      context.restore();
    }

    // Where the critical path goes on with another rank, a line leads from one to the other.
    function drawPathJumps(context, { toX, yOf, ink, gutter, width, height }) {
      if (!state.lanes.has("path")) return;
      drawPathInLines(context, { toX, yOf, ink, gutter, width, height });
      sources.forEach((source) => {
        const { path } = source;
        if (!path) return;
        const rowsByRank = new Map(chart.rows().filter((row) => row.name === "path" && row.source === source).map((row) => [row.rank.rank, row]));
        const [from, to] = chart.window();
        context.strokeStyle = ink;
        context.lineWidth = 1.2;
        context.globalAlpha = 0.7;
        context.beginPath();
        let lastX = -10;
        for (let i = Math.max(1, tracks.firstAbove(path.start, from)); i < path.count && path.start[i] <= to; i++) {
          const before = rowsByRank.get(path.rank[i - 1]), after = rowsByRank.get(path.rank[i]), x = toX(path.start[i]);
          if (before === after || !before || !after || x - lastX < 1 || x < gutter || x > gutter + width) continue;
          lastX = x;
          context.moveTo(x, yOf(before) + before.height / 2);
          context.lineTo(x, yOf(after) + after.height / 2);
        }
        context.stroke();
        context.globalAlpha = 1;
      });
    }

    // The critical path in ranks of one line: a bar at the lower edge.
    function drawPathInLines(context, { toX, yOf, ink, gutter, width, height }) {
      const [from, to] = chart.window();
      context.fillStyle = ink;
      for (const row of chart.rows()) {
        const list = row.compact && row.source.path?.byRank.get(row.rank.rank), y = list ? yOf(row) + row.height - 2 : 0;
        if (!list || y < chart.axisPx || y > height) continue;
        const { start, end } = row.source.path;
        let reach = gutter; // pieces that touch are one bar
        for (let i = Math.max(0, firstByStart(list, start, from) - 1); i < list.length && start[list[i]] <= to; i++) {
          const left = Math.max(reach, toX(start[list[i]])), right = Math.min(gutter + width, toX(end[list[i]]));
          if (right - left < 0.3) continue;
          context.fillRect(left, y, right - left, 2);
          reach = right;
        }
      }
    }
    // First position in a list of boxes in order of start that starts after the limit.
    function firstByStart(list, start, limit) {
      let low = 0, high = list.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (start[list[middle]] > limit) high = middle; else low = middle + 1;
      }
      return low;
    }

    // The events that belong to one: its operation on other ranks or, in a diff, the same event of the other run.
    const partnersOf = (selection) => options.partners?.(selection) ?? runEvents
      .partners(selection.source.run, selection.source.run.ranks.indexOf(selection.rank), selection.event)
      .map(([r, e]) => ({ source: selection.source, rank: selection.source.run.ranks[r], event: e }));

    // ---- search
    function search(query) {
      state.query = query;
      state.found = query.trim() ? sources.map(({ run, name }) => runEvents.search(run, query, name)) : null;
      state.matches = state.found ? matchingEvents() : null;
      if (state.matches?.hostCount && !state.matches.count && !state.lanes.has("host")) { // what was found is on the host
        state.lanes.add("host");
        setRanks(state.ranks);
      }
      colourEvents();
      options.changed?.();
      return state.matches;
    }
    // How many events the search names, their starts in order, and a summary by name: [{ name, label, count, ms }]. The events
    // themselves, in order of time (list), are made when asked for: a search while typing needs them not.
    function matchingEvents() {
      const found = []; // the matches of each rank: [source, rank, numbers of its events]
      const byName = new Map();
      let total = 0, count = 0, hostCount = 0;
      sources.forEach((source, s) => {
        const { mask, hostMask, isLong, ranks: asked } = state.found[s], entryOf = []; // by description
        source.run.ranks.forEach((rank) => {
          if (asked && !asked.has(rank.rank)) return;
          const { start, end, description, count: eventCount } = rank.events, own = [];
          for (let i = 0; i < eventCount; i++) {
            const number = description[i], length = end[i] - start[i];
            if (!mask[number] || !isLong(length)) continue;
            own.push(i);
            const entry = entryOf[number] ??= entryFor(byName, source, number);
            entry.count += 1;
            entry.ms += length;
            total += length;
            if (length > entry.longestMs) {
              entry.longestMs = length;
              entry.longest = { source, rank, event: i };
            }
          }
          if (own.length) found.push([source, rank, own]);
          count += own.length;
          for (let i = 0; i < (rank.host?.count ?? 0); i++) {
            if (hostMask[rank.host.name[i]] && isLong(rank.host.end[i] - rank.host.start[i])) hostCount += 1;
          }
        });
      });
      const starts = new Float64Array(count);
      let filled = 0;
      for (const [, { events }, own] of found) for (const event of own) starts[filled++] = events.start[event];
      starts.sort();
      let list = null;
      const eventsInOrder = () => found.flatMap(([source, rank, own]) => own.map((event) => ({ source, rank, event, start: rank.events.start[event] })))
        .sort((one, other) => one.start - other.start);
      return {
        get list() { return list ??= eventsInOrder(); },
        count, starts, byName: [...byName.values()].sort((one, other) => other.ms - one.ms), ms: total, hostCount,
      };
    }
    // The summary of a description's kernel and label; a kernel that has several labels is counted for each of them.
    function entryFor(byName, source, number) {
      const label = source.run.text("label", number), name = source.run.text("name", number) ?? label, key = `${name}\n${label}`;
      if (!byName.has(key)) byName.set(key, { name, label, count: 0, ms: 0, longest: null, longestMs: -1 });
      return byName.get(key);
    }
    // A mark in the axis wherever something that was searched for begins.
    function marks(context, { toX, from, to, left, width }) {
      if (!state.matches) return;
      context.fillStyle = "#D55E00";
      const { starts } = state.matches, msPerPx = (to - from) / width;
      for (let i = tracks.firstAbove(starts, from); i < starts.length && starts[i] <= to;) {
        const x = toX(starts[i]);
        context.fillRect(Math.max(left, x - 0.75), 25, 1.5, 5);
        i = tracks.firstAbove(starts, starts[i] + msPerPx);
      }
    }
    // The match before or after the selected event (or the window's start), over the shown ranks.
    function stepMatch(direction) {
      if (!state.matches?.count) return;
      const { list, starts } = state.matches;
      const { selected } = state;
      const current = selected ? list.findIndex(({ rank, event }) => rank === selected.rank && event === selected.event) : -1;
      const next = current >= 0 ? current + direction : tracks.firstAbove(starts, chart.window()[0]) - (direction < 0 ? 1 : 0);
      select(list[(next + list.length) % list.length], { reveal: true });
    }

    // Show the longest piece of the critical path in the chosen window; again: the next longest, after the piece shown last.
    function selectLongestOnPath(after = state.piece) {
      const [from, to] = state.pathWindow ??= chart.window(), source = sources.find(({ path }) => path), { path } = source;
      const pieces = [];
      for (let i = 0; i < path.count; i++) if (path.end[i] > from && path.start[i] < to) pieces.push(i);
      pieces.sort((a, b) => (path.end[b] - path.start[b]) - (path.end[a] - path.start[a]));
      if (pieces.length) selectPiece(source, pieces[(pieces.indexOf(after) + 1) % pieces.length]);
    }
    // Select what a segment of the path is: its cell, or the piece that shares the most time with it; none: the panel closes.
    function selectSegment({ rank, from, to, isCell, pathWindow }) {
      const source = sources.find(({ path }) => path), { path, cells } = source, boxes = isCell && cells ? cells : path;
      const shared = (i) => Math.min(boxes.end[i], to) - Math.max(boxes.start[i], from);
      const best = (boxes.byRank.get(rank) ?? []).reduce((most, i) => (shared(i) > (most < 0 ? 0 : shared(most)) ? i : most), -1);
      state.pathWindow = pathWindow;
      if (best < 0) select(null);
      else if (boxes === path) selectPiece(source, best);
      else showShared("cells", source, best, { reveal: true });
    }
    const sharedRow = (lane, source, box) => chart.rows().find((row) => row.name === lane && row.source === source && row.rank.rank === source[lane].rank[box]);
    // Select the event of a piece, or the piece itself where the path runs through the host.
    function selectPiece(source, i) {
      const { path } = source, selection = eventOfPiece(source, i);
      state.piece = i;
      if (selection) { select(selection, { reveal: true }); return; }
      if (!state.lanes.has("host") || !state.ranks.has(path.rank[i])) {
        state.lanes.add("host"); // shows what the host did
        setRanks([...state.ranks, path.rank[i]]);
      }
      const length = path.end[i] - path.start[i];
      chart.setWindow(path.start[i] - 2 * length, path.end[i] + 2 * length);
      showShared("path", source, i, { reveal: true });
    }
    // Select a cell, or a piece of the path that is no event; a cell is linked with its counterpart in the other run.
    function showShared(lane, source, box, { reveal = false } = {}) {
      select(null);
      state.marked = [{ lane, source, box }, ...(lane === "cells" ? options.cellPartners?.(source, box) ?? [] : [])];
      const row = reveal && sharedRow(lane, source, box);
      if (row) chart.revealRow(row);
      options.shared?.(lane, source, box, state.marked.slice(1));
      options.changed?.();
      chart.invalidate();
    }
    // The event that a piece of the path is: of its label and, for communication and copies, of its name. None for the host.
    function eventOfPiece(source, i) {
      const { path, run } = source, rank = run.ranks[run.rankIndex.get(path.rank[i])], label = path.texts[path.label[i]];
      if (!rank || !label || path.texts[path.what[i]] === "host") return null;
      let best = -1, most = 0;
      for (let e = 0; e < rank.events.count && rank.events.start[e] < path.end[i]; e++) {
        const shared = Math.min(rank.events.end[e], path.end[i]) - Math.max(rank.events.start[e], path.start[i]);
        if (shared > most && isEventOfPiece(source, rank, e, i)) { best = e; most = shared; }
      }
      return best < 0 ? null : { source, rank, event: best };
    }
    function isEventOfPiece({ path, run }, rank, event, i) {
      const number = rank.events.description[event], kind = path.texts[path.what[i]];
      if (run.text("label", number) !== path.texts[path.label[i]] || kind === "host") return false;
      return kind === "kernel" || path.texts[path.description[i]].split("\n")[0] === run.text("name", number);
    }
    // The piece of the critical path that an event is (the longest, if it is several); -1 for none.
    function pieceOf({ source, rank, event }) {
      const { path } = source, { start, end } = rank.events;
      let best = -1, most = 0;
      for (const i of path?.byRank.get(rank.rank) ?? []) {
        const shared = Math.min(end[event], path.end[i]) - Math.max(start[event], path.start[i]);
        if (shared > most && isEventOfPiece(source, rank, event, i)) { best = i; most = shared; }
      }
      return best;
    }

    function setRanks(numbers) {
      state.ranks = new Set(numbers);
      drawButtons();
      rebuild();
      options.changed?.();
    }

    // ---- an area of the chart: what runs in it, by label and by kernel
    function areaFigures({ from, to, rows }) {
      const byLabel = new Map(), byKernel = new Map(), shownRanks = new Set(), seen = new Set();
      let busy = 0;
      const add = (entries, key, entry, time) => {
        if (!entries.has(key)) entries.set(key, { ...entry, count: 0, ms: 0, longest: 0 });
        const sum = entries.get(key);
        sum.count += 1;
        sum.ms += time;
        sum.longest = Math.max(sum.longest, time);
      };
      const spans = new Map(); // rank and source → stretches of its events, for their union
      for (const row of rows.filter(({ events }) => events)) {
        const { run } = row.source, { events } = row.rank, key = `${sources.indexOf(row.source)}.${row.rank.rank}`;
        shownRanks.add(row.rank.rank);
        if (!spans.has(key)) spans.set(key, []);
        for (const track of row.tracks) {
          const last = tracks.firstAbove(track.start, to);
          for (let i = tracks.firstAbove(track.reach, from); i < last; i++) {
            const event = track.index[i];
            if (events.end[event] <= from || chart.hidden.has(events.kind[event]) || seen.has(`${key}.${event}`)) continue;
            seen.add(`${key}.${event}`);
            const start = Math.max(from, events.start[event]), end = Math.min(to, events.end[event]), number = events.description[event];
            const label = run.text("label", number), name = run.text("name", number) ?? label;
            spans.get(key).push([start, end]);
            add(byLabel, label, { label }, end - start);
            add(byKernel, `${name}\n${label}`, { name, label }, end - start);
          }
        }
      }
      for (const list of spans.values()) {
        let reach = from;
        for (const [start, end] of list.sort((a, b) => a[0] - b[0])) {
          busy += Math.max(0, end - Math.max(start, reach));
          reach = Math.max(reach, end);
        }
      }
      const byTime = (entries) => [...entries.values()].sort((a, b) => b.ms - a.ms);
      return { from, to, ranks: [...shownRanks].sort((a, b) => a - b), count: seen.size, rankMs: (to - from) * spans.size, busy, labels: byTime(byLabel), kernels: byTime(byKernel) };
    }

    // ---- buttons for ranks and lanes
    function toggles(box, entries, isOn, toggle) {
      if (!box) return;
      box.replaceChildren(...entries.map(([key, name]) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = name;
        button.setAttribute("aria-pressed", String(isOn(key)));
        button.onclick = (event) => toggle(key, event);
        return button;
      }));
      box.parentElement.hidden = entries.length < 2;
    }
    // From all: this one alone; else on or off; the last one off: all.
    function choose(all, shown, key) {
      if (shown.size === all.length) return [key];
      if (!shown.has(key)) return [...shown, key];
      return shown.size > 1 ? [...shown].filter((other) => other !== key) : all;
    }
    function setSources(chosen) {
      state.shown = new Set(chosen);
      setRanks(state.ranks);
    }
    function drawButtons() {
      toggles(options.roleButtons, [[null, "all"], ...sources.map((source) => [source, source.name])],
        (source) => (source ? state.shown.has(source) : state.shown.size === sources.length),
        (source) => setSources(source ? choose(sources, state.shown, source) : sources));
      if (options.roleButtons) options.roleButtons.parentElement.hidden = sources.length < 2;
      const openCount = allKeys().filter((key) => state.open.has(key)).length;
      toggles(options.openButtons, isLarge ? [["line", "one line"], ["rows", "all rows"]] : [],
        (key) => (key === "line" ? openCount === 0 : openCount === allKeys().length), (key) => setOpen(allKeys(), key === "rows"));
      if (options.rankField) {
        options.rankField.parentElement.hidden = ranks.length <= MAX_RANK_BUTTONS;
        options.rankField.value = state.ranks.size === ranks.length ? "" : rankText(state.ranks);
        options.rankField.placeholder = `all of ${rankText(ranks)}`;
        options.rankField.onchange = () => {
          const chosen = options.rankField.value.trim() ? parseRanks(options.rankField.value, ranks) : ranks;
          options.rankField.setCustomValidity(chosen?.length ? "" : `no rank of ${rankText(ranks)} has such a number; for example: 0-7, 12`);
          options.rankField.reportValidity();
          if (chosen?.length) setRanks(chosen);
        };
      }
      toggles(options.rankButtons, ranks.length > MAX_RANK_BUTTONS ? [] : [["all", "all"], ...ranks.map((rank) => [rank, String(rank)])],
        (rank) => (rank === "all" ? state.ranks.size === ranks.length : state.ranks.has(rank)),
        (rank) => setRanks(rank === "all" ? ranks : choose(ranks, state.ranks, rank)));
      if (options.rankButtons && ranks.length < 2) options.rankButtons.parentElement.hidden = true;
      const has = (test) => sources.some(({ run }) => test(run));
      const offered = [
        ["path", "critical path", has(({ data }) => data.path)], ["cells", "cells", sources.some(({ schedule }) => schedule)],
        ["memory", "memory", has(({ ranks: all }) => all.some(({ memory }) => memory))],
        ["host", "host", has(({ ranks: all }) => all.some(({ host }) => host))],
      ].filter(([, , present]) => present);
      toggles(options.laneButtons, offered, (lane) => state.lanes.has(lane), (lane) => {
        if (!state.lanes.delete(lane)) state.lanes.add(lane);
        drawButtons();
        rebuild();
        options.changed?.();
      });
      if (options.laneButtons) options.laneButtons.parentElement.hidden = !offered.length;
    }

    // ---- the view as text: window, ranks, selection and search, for links to a moment
    function viewText() {
      const [from, to] = chart.window(), { selected } = state, words = new URLSearchParams();
      words.set("from", from.toFixed(6));
      words.set("to", to.toFixed(6));
      if (state.ranks.size < ranks.length) words.set("ranks", [...state.ranks].sort((a, b) => a - b).join());
      if (isLarge && state.open.size) words.set("open", [...state.open].join());
      if (state.pinned.size) words.set("pin", [...state.pinned].join());
      if (state.shown.size < sources.length) words.set("roles", [...state.shown].map((source) => sources.indexOf(source)).join());
      words.set("lanes", [...state.lanes].join());
      if (selected) words.set("event", [sources.indexOf(selected.source), selected.rank.rank, selected.event].join("."));
      const [marked] = state.marked;
      if (marked) words.set("box", [marked.lane, sources.indexOf(marked.source), marked.box].join("."));
      if (state.query) words.set("find", state.query);
      if (chart.hidden.size) words.set("hide", [...chart.hidden].map((kind) => kinds[kind].name).join());
      return `view:${words}`;
    }
    function applyView(text) {
      const words = new URLSearchParams(text.replace(/^#?view:/, "")), numbers = (name) => words.get(name).split(/[,.]/).map(Number);
      if (words.has("lanes")) state.lanes = new Set(words.get("lanes").split(","));
      if (words.has("ranks")) state.ranks = new Set(numbers("ranks").filter((rank) => ranks.includes(rank)));
      if (isLarge) state.open = new Set((words.get("open") ?? "").split(",").filter(Boolean));
      state.pinned = new Set(words.has("pin") ? numbers("pin") : []);
      if (words.has("roles")) state.shown = new Set(numbers("roles").map((s) => sources[s]).filter(Boolean));
      if (words.has("hide")) kinds.forEach(({ name }, kind) => { if (name && words.get("hide").split(",").includes(name)) chart.hidden.add(kind); });
      drawButtons();
      rebuild();
      options.legend && charts.drawLegend(options.legend, chart, legendKinds());
      if (words.has("find")) options.setQuery?.(words.get("find"));
      const from = Number(words.get("from")), to = Number(words.get("to"));
      if (to > from) chart.setWindow(from, to, true);
      if (words.has("box")) {
        const [lane, s, box] = words.get("box").split(".");
        if (sources[s]?.[lane]?.count > Number(box)) showShared(lane, sources[s], Number(box), { reveal: true });
      }
      if (words.has("event")) {
        const [s, number, event] = numbers("event"), source = sources[s], rank = source?.run.ranks[source.run.rankIndex.get(number)];
        if (rank && event < rank.events.count) {
          select({ source, rank, event });
          const row = rowOfEvent(state.selected);
          if (row) chart.revealRow(row);
        }
      }
    }
    const usedHostLanes = new Set(sources.flatMap(({ run }) => run.ranks.flatMap(({ host }) => [...new Set(host?.lane ?? [])])));
    const legendKinds = () => kinds.map((kind, i) => {
      const used = i < extraKind ? !options.colouring?.() : i < eventKinds ? options.colouring?.() : state.lanes.has("host") && (i >= hostKind + first.host.length || usedHostLanes.has(i - hostKind));
      return used ? kind : { ...kind, name: "" };
    });

    // Move all times of a source, so that source.shift is where its time 0 lies on the axis.
    function shiftSource(source, shift) {
      const by = shift - (source.shift || 0);
      const all = [source.path, source.cells, ...source.run.ranks.flatMap(({ events, host }) => [events, host])];
      for (const boxes of all) {
        for (let i = 0; i < (boxes?.count ?? 0); i++) { boxes.start[i] += by; boxes.end[i] += by; }
      }
      source.shift = shift;
    }

    return (async () => {
      await Promise.all(sources.map(loadShared));
      if (options.shifts) sources.forEach((source, s) => shiftSource(source, options.shifts[s]));
      options.prepare?.(sources, kinds);
      colourEvents();
      const end = Math.max(...sources.map(({ run, shift }) => run.data.end_ns / 1e6 + (shift || 0)));
      const begin = Math.min(...sources.map(({ run, shift }) => run.data.begin_ns / 1e6 + (shift || 0))), margin = (end - begin) * 0.01;
      chart = charts.create(element, {
        groups: [], kinds, begin: begin - margin, end: end + margin, window: options.window, shade: options.shade, marks, overlay,
        dimKind, dimmed: () => state.found !== null, selectsArea: options.selectsArea,
        area: options.area && ((area) => options.area(areaFigures(area))),
        select: (hit) => {
          select(hit && hit.row.events ? { source: hit.row.source, rank: hit.row.rank, event: hit.box } : null);
          if (["path", "cells"].includes(hit?.row.name)) showShared(hit.row.name, hit.row.source, hit.box);
          if (hit?.row.host) options.host?.(hit.row.source, hit.row.rank, hit.box);
        },
        move: (hit) => { if (hit.row.events) select({ source: hit.row.source, rank: hit.row.rank, event: hit.box }); },
        open: (hit) => {
          const margin = 2 * (hit.boxes.end[hit.box] - hit.boxes.start[hit.box]);
          chart.setWindow(hit.boxes.start[hit.box] - margin, hit.boxes.end[hit.box] + margin);
        },
        onWindow: () => options.changed?.(),
        keys: {
          e: () => { const group = chart.cursorGroup(); if (group?.toggle) group.toggle(group); },
          i: () => { const group = chart.cursorGroup(); if (group?.pin) group.pin(group); },
          f: () => state.selected && select(state.selected, { reveal: true }), "/": () => options.focusSearch?.(),
        },
      });
      drawButtons();
      rebuild();
      if (options.legend) charts.drawLegend(options.legend, chart, legendKinds());
      return {
        chart, state, sources, ranks, kinds, select, search, stepMatch, setRanks, setSources, viewText, applyView, partnersOf, selectLongestOnPath,
        pieceOf, selectSegment, showShared, colourEvents, shiftSource, rebuild, eventAt, mark, setOpen, openRank, setPinned, areaFigures,
        showOnly(labels) { // switch all other labels off; none: all on
          chart.hidden.clear();
          kinds.forEach(({ name }, kind) => { if (labels && name && kind < extraKind && !labels.includes(name)) chart.hidden.add(kind); });
          charts.drawLegend(options.legend, chart, legendKinds());
          chart.invalidate();
        },
        redrawLegend: () => charts.drawLegend(options.legend, chart, legendKinds()),
      };
    })();
  }

  // Keep the view in the page's address. A zoom is a step of the browser's history, so that "back" undoes it; what else changes
  // replaces the step. Returns what to call when the view has changed; `settled` is called once it stands still.
  function keepInHistory(getTimeline, settled) {
    const SETTLED_MS = 250, MIN_ZOOM = 1.05;
    const first = { window: getTimeline().chart.window(), hash: location.hash };
    let waiting = null, last = first.window;
    const spanOf = ([from, to]) => to - from;
    const remember = () => {
      const timeline = getTimeline(), hash = `#${timeline.viewText()}`, shown = timeline.chart.window();
      const ratio = spanOf(shown) / spanOf(last), isZoom = Math.max(ratio, 1 / ratio) >= MIN_ZOOM;
      last = shown;
      settled?.();
      if (hash !== location.hash) history[isZoom ? "pushState" : "replaceState"](null, "", hash);
    };
    addEventListener("popstate", () => {
      const timeline = getTimeline(), isView = location.hash.startsWith("#view:");
      if (isView && location.hash !== `#${timeline.viewText()}`) timeline.applyView(decodeURI(location.hash));
      else if (location.hash === first.hash && !isView) timeline.chart.setWindow(...first.window, true);
      clearTimeout(waiting);
      last = timeline.chart.window();
      settled?.();
    });
    return () => { clearTimeout(waiting); waiting = setTimeout(remember, SETTLED_MS); };
  }

  return { create, keepInHistory, rankText };
})();
