// Draws the two timelines. Everything from a trace is put on the page as text or as pixels, never as markup.
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip"), said = document.getElementById("said");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const LABELS_AT_MOST = 700, OUTLINES_AT_MOST = 3000, PATH = -1, IDLE = "#E8EBEE";

  const place = (api, row) => {
    const [x0, y] = api.coord([0, row]), [x1] = api.coord([1, row]), height = api.size([0, 1])[1] * 0.84;
    return { x0, scale: x1 - x0, top: y - height / 2, height };
  };
  const across = (sections) => sections.map((_, i) => i);

  function begin(element) {
    // A wheel over a timeline scrolls the page, as it does everywhere, until the reader takes the timeline in hand.
    const inHand = (event) => document.activeElement === element || event.ctrlKey || event.metaKey;
    for (const name of ["wheel", "mousewheel"]) {
      element.addEventListener(name, (event) => { if (!inHand(event)) event.stopPropagation(); }, { capture: true, passive: true });
    }
    return echarts.init(element, null, { renderer: "canvas" });
  }

  function timeline(element, { rows, kinds, sections, end, describe, number, hidden, open, outlines, memory }) {
    const rowHeight = Math.max(9, Math.min(34, 640 / (rows.length * sections.length)));
    const gridHeight = Math.max(rows.length * rowHeight, 30), gap = 54, LINE = 64;
    // Under the rows, on the same time axis: what the allocator held.
    const below = memory ? [sections.length] : [], axes = [...across(sections), ...below];
    element.style.height = `${sections.length * (gridHeight + gap) + below.length * (LINE + gap) + 64}px`;
    const chart = echarts.getInstanceByDom(element) || begin(element);
    chart.resize();

    const shapes = (index, kind) => ({
      type: "custom", name: kinds[kind].name, xAxisIndex: index, yAxisIndex: index, silent: true, clip: true, animation: false,
      data: rows.map((_, row) => [0, row]), encode: { x: 0, y: 1 },
      renderItem: (params, api) => {
        const { x, width } = params.coordSys, row = api.value(1);
        const shape = { key: boxes.keyOf(sections[index].boxes), hidden, row, kind, left: x, right: x + width, ...place(api, row) };
        return { type: "boxes", shape, style: { fill: kinds[kind].colour === IDLE ? css("--idle") : kinds[kind].colour } };
      },
    });
    const numbers = (index) => ({
      type: "custom", name: "numbers", xAxisIndex: index, yAxisIndex: index, silent: true, clip: true, animation: false, z: 5,
      data: rows.map((_, row) => [0, row]), encode: { x: 0, y: 1 },
      renderItem: (params, api) => {
        const all = sections[index].boxes, p = place(api, api.value(1));
        const { x, width } = params.coordSys, range = all.rows.get(api.value(1)), children = [];
        if (!range || p.height < 10) return null;
        for (let i = range[0]; i < range[1] && children.length < LABELS_AT_MOST; i++) {
          const a = p.x0 + all.start[i] * p.scale, b = p.x0 + all.end[i] * p.scale, text = String(number(all, i));
          if (b < x || a > x + width || b - a < 7 * text.length + 2 || text === "" || hidden.has(all.kind[i])) continue;
          const y = p.top + p.height * (all.half[i] === 0 ? 0.5 : all.half[i] === 1 ? 0.25 : 0.75);
          const size = Math.min(11, all.half[i] ? p.height / 2 : p.height - 2);
          if (size < 7) continue;
          children.push({ type: "text", style: { x: (Math.max(a, x) + Math.min(b, x + width)) / 2, y, text, fill: "#16202a", align: "center", verticalAlign: "middle", fontSize: size } });
        }
        return { type: "group", children };
      },
    });

    // The critical path: a line around each box it runs through; neighbours closer than the eye can tell share one.
    const path = (index) => ({
      type: "custom", name: "critical path", xAxisIndex: index, yAxisIndex: index, silent: true, clip: true, animation: false, z: 6,
      data: [[0, 0]], encode: { x: 0, y: 1 },
      renderItem: (params, api) => {
        const { x, width } = params.coordSys, children = [];
        for (const [row, pieces] of hidden.has(PATH) ? [] : outlines(sections[index].boxes)) {
          const p = place(api, row);
          let last = null;
          for (const [start, stop, half] of pieces) {
            const a = Math.max(p.x0 + start * p.scale, x), b = Math.min(Math.max(p.x0 + stop * p.scale, a + 2), x + width);
            if (b < x || a > x + width) continue;
            if (last && last.half === half && a < last.b + 1.5) { last.b = Math.max(b, last.b); continue; }
            if (children.length >= OUTLINES_AT_MOST) break;
            children.push(last = { a, b, half, p });
          }
        }
        return { type: "group", children: children.map(({ a, b, half, p }) => ({
          type: "rect", shape: { x: a, y: half === 2 ? p.top + p.height / 2 : p.top, width: b - a, height: half ? p.height / 2 : p.height },
          style: { fill: "none", stroke: css("--ink"), lineWidth: 2 },
        })) };
      },
    });

    const held = (at, dashed) => ({
      type: "custom", name: "memory", xAxisIndex: sections.length, yAxisIndex: sections.length, silent: true, clip: true, animation: false,
      data: [[0, 0]], encode: { x: 0, y: 1 },
      renderItem: (params, api) => {
        const points = [];
        memory.points.forEach((point, i) => {
          if (point[at] === null) return;
          const until = i + 1 < memory.points.length ? memory.points[i + 1][0] : end;
          points.push(api.coord([point[0], point[at]]), api.coord([until, point[at]]));
        });
        return { type: "polyline", shape: { points }, style: { fill: "none", stroke: css(dashed ? "--soft" : "--accent"), lineWidth: 1.5, lineDash: dashed ? [4, 3] : null } };
      },
    });
    const place_of = (i) => (i < sections.length ? { top: 30 + i * (gridHeight + gap), height: gridHeight } : { top: 30 + i * (gridHeight + gap), height: LINE });
    const named = { nameLocation: "start", nameTextStyle: { color: css("--ink"), fontWeight: 600, align: "right" }, axisTick: { show: false }, axisLine: { show: false } };

    const draw = () => chart.setOption({
      animation: false,
      legend: { show: false, data: kinds.map((kind) => kind.name), selected: Object.fromEntries(kinds.map((kind, k) => [kind.name, !hidden.has(k)])) },
      grid: axes.map((i) => ({ left: 106, right: 22, outerBoundsMode: "none", ...place_of(i) })), // one left edge, whatever the names
      xAxis: axes.map((i) => ({
        gridIndex: i, type: "value", min: 0, max: end, axisLabel: { show: !memory || i === sections.length, color: css("--soft"), formatter: (v) => `${+v.toFixed(3)}`, showMaxLabel: false, hideOverlap: true },
        axisLine: { lineStyle: { color: css("--line") } }, splitLine: { lineStyle: { color: css("--line"), opacity: 0.6 } },
        name: i === axes.length - 1 ? "time (ms)" : "", nameLocation: "middle", nameGap: 24, nameTextStyle: { color: css("--soft") },
      })),
      yAxis: axes.map((i) => (i < sections.length ? {
        ...named, gridIndex: i, type: "category", data: rows, inverse: true, name: sections[i].name,
        axisLabel: { color: css("--soft"), fontSize: Math.min(12, rowHeight), interval: rowHeight < 12 ? "auto" : 0 },
      } : {
        ...named, gridIndex: i, type: "value", min: 0, max: memory.top, name: "memory (GB)", nameLocation: "end",
        axisLabel: { color: css("--soft"), formatter: (v) => `${+v.toPrecision(3)}`, hideOverlap: true }, splitNumber: 2, splitLine: { lineStyle: { color: css("--line"), opacity: 0.6 } },
      })),
      dataZoom: [
        { type: "inside", xAxisIndex: axes, filterMode: "none", minSpan: 0.02, preventDefaultMouseMove: false },
        { type: "slider", show: !matchMedia("print").matches, xAxisIndex: axes, filterMode: "none", bottom: 6, height: 18, brushSelect: false, showDetail: false,
          borderColor: css("--line"), fillerColor: css("--filler"), handleStyle: { color: css("--ground"), borderColor: css("--soft") } },
      ],
      series: [...sections.flatMap((_, i) => [...kinds.map((_, k) => shapes(i, k)), ...(number ? [numbers(i)] : []), ...(outlines ? [path(i)] : [])]),
        ...(memory ? [held(2, true), held(1, false)] : [])],
    }, { replaceMerge: ["series", "grid", "xAxis", "yAxis"] });
    draw();
    element.onblur = () => show(null);

    const shownAt = (index, x, y) => {
      if (!chart.containPixel({ gridIndex: index }, [x, y])) return null;
      const [time, at] = chart.convertFromPixel({ gridIndex: index }, [x, y]), row = Math.round(at);
      const all = sections[index].boxes, range = all.rows.get(row);
      if (!range) return null;
      const half = y < chart.convertToPixel({ gridIndex: index }, [time, row])[1] ? 1 : 2;
      let best = null;
      for (let i = range[0]; i < range[1] && all.start[i] <= time; i++) {
        if (all.end[i] >= time && (all.half[i] === 0 || all.half[i] === half) && !hidden.has(all.kind[i])) best = i;
      }
      return best === null ? null : { section: sections[index], row, boxes: all, i: best };
    };
    const show = (hit, x, y) => {
      tip.hidden = !hit;
      if (!hit) return;
      tip.textContent = hit.said ?? describe(hit);
      const box = element.getBoundingClientRect();
      tip.style.left = `${Math.max(4, Math.min(box.left + x + 14, innerWidth - tip.offsetWidth - 8))}px`;
      const below = box.top + y + 16;
      tip.style.top = `${below + tip.offsetHeight > innerHeight ? Math.max(4, box.top + y - tip.offsetHeight - 10) : below}px`;
    };
    const heldAt = (x, y) => {
      if (!memory || !chart.containPixel({ gridIndex: sections.length }, [x, y])) return null;
      const time = chart.convertFromPixel({ gridIndex: sections.length }, [x, y])[0];
      const point = memory.points.findLast(([at]) => at <= time);
      if (!point) return null;
      const reserved = point[2] === null ? "" : `, ${point[2].toPrecision(3)} GB reserved`;
      return { said: `memory at ${time.toFixed(3)} ms\n${point[1].toPrecision(3)} GB allocated${reserved}` };
    };
    const zr = chart.getZr();
    const hover = ({ offsetX: x, offsetY: y }) => show(heldAt(x, y) || across(sections).map((index) => shownAt(index, x, y)).find(Boolean), x, y);
    const leave = () => show(null);
    const press = ({ offsetX: x, offsetY: y }) => {
      const hit = across(sections).map((index) => shownAt(index, x, y)).find(Boolean);
      if (hit && open) open(hit);
    };
    element.letGo?.(); // only what was put there: ECharts listens for drags on the same events
    element.letGo = () => { zr.off("mousemove", hover); zr.off("globalout", leave); zr.off("dblclick", press); };
    zr.on("mousemove", hover);
    zr.on("globalout", leave);
    zr.on("dblclick", press);

    const zoom = (from, to) => chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, start: Math.max(0, from), end: Math.min(100, to) });
    const window = () => { const { start, end: stop } = chart.getOption().dataZoom[0]; return [start, stop]; };

    // The keyboard's hand: one box at a time, told in words.
    let index = 0, row = 0, at = null;
    const tell = () => {
      const all = sections[index].boxes, middle = (all.start[at] + all.end[at]) / 2, share = 100 * middle / end, [start, stop] = window();
      if (share < start || share > stop) zoom(share - (stop - start) / 2, share + (stop - start) / 2);
      const [x, y] = chart.convertToPixel({ gridIndex: index }, [middle, row]);
      show({ section: sections[index], row, boxes: all, i: at }, x, y);
      said.textContent = tip.textContent;
    };
    const step = (by) => {
      const all = sections[index].boxes, [from, to] = all.rows.get(row) || [0, 0];
      let next = at === null ? (by > 0 ? from : to - 1) : at + by;
      while (next >= from && next < to && hidden.has(all.kind[next])) next += by;
      if (next < from || next >= to) return;
      at = next;
      tell();
    };
    const turn = (by) => {
      const total = rows.length * sections.length, next = Math.min(total - 1, Math.max(0, index * rows.length + row + by));
      [index, row, at] = [Math.floor(next / rows.length), next % rows.length, null];
      step(1);
    };
    element.onkeydown = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return; // those are the browser's
      const [start, stop] = window(), width = stop - start, middle = (start + stop) / 2;
      const pan = (by) => zoom(...(by < 0 ? [Math.max(0, start + by), Math.max(0, start + by) + width] : [Math.min(100, stop + by) - width, Math.min(100, stop + by)]));
      const moves = {
        ArrowLeft: () => pan(-width / 5), ArrowRight: () => pan(width / 5), ArrowUp: () => turn(-1), ArrowDown: () => turn(1),
        "+": () => zoom(middle - width / 3, middle + width / 3), "=": () => zoom(middle - width / 3, middle + width / 3),
        "-": () => zoom(middle - width * 0.75, middle + width * 0.75), 0: () => zoom(0, 100),
        n: () => step(1), p: () => step(-1), Escape: () => show(null),
        Enter: () => { if (at !== null && open) open({ section: sections[index], row, boxes: sections[index].boxes, i: at }); },
      };
      const move = moves[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!move) return;
      event.preventDefault();
      move();
    };
    const toggle = (same, on) => {
      for (const kind of same) if (on) hidden.delete(kind); else hidden.add(kind);
      draw();
    };
    return { chart, draw, zoom, toggle };
  }

  function legend(element, kinds, hidden, toggle, { shaded, path } = {}) {
    const named = new Map(); // chunks are kinds of one name, in lighter shades
    kinds.forEach(({ name, colour }, kind) => named.has(name) ? named.get(name).same.push(kind) : named.set(name, { colour, same: [kind] }));
    if (path) named.set("critical path", { colour: null, same: [PATH] });
    element.replaceChildren(...[...named].map(([name, { colour, same }]) => {
      const button = document.createElement("button"), key = document.createElement("i");
      if (colour === IDLE) key.className = "idle"; else if (colour === null) key.className = "path"; else key.style.background = colour;
      button.append(key, name);
      button.type = "button";
      button.setAttribute("aria-pressed", String(!hidden.has(same[0])));
      button.onclick = () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        toggle(same, on);
      };
      return button;
    }));
    if (shaded) element.append("lighter: later chunk");
  }

  // Boxes to draw a line around, by row: place says in which row and half, or that there is none.
  const byRow = (all, place) => {
    const found = new Map();
    for (let i = 0; i < all.n; i++) {
      const at = place(i);
      if (!at) continue;
      if (!found.has(at[0])) found.set(at[0], []);
      found.get(at[0]).push([all.start[i], all.end[i], at[1]]);
    }
    return found;
  };

  const time = (all, i) => `${all.start[i].toFixed(3)} to ${all.end[i].toFixed(3)} ms\n${(all.end[i] - all.start[i]).toFixed(3)} ms long`;
  const charts = [];

  let openLanes = null; // (rank, { step, from, to in ms, only }) shows a rank's lanes: a moment of them, or one label alone

  async function schedule({ causes, choices }) {
    const hidden = new Set(), at = charts.push(null) - 1, box = document.getElementById("schedule-which");
    const show = async (which) => {
      const { kinds, rows, ranks, step, cells, sections, end_ns, shaded } = choices[which];
      const unpacked = await Promise.all(sections.map(async (s) => ({ name: s.name, boxes: await boxes.unpack(s.boxes) })));
      const ofStep = (data.lanes?.steps || []).find((one) => one.step === step || step === null);
      const inLanes = (rank) => ofStep?.ranks[rank]?.cells_at_ns != null;
      const describe = ({ section, row, boxes: all, i }) => {
        const cell = all.stage[i] >= 0 ? `\nstage ${all.stage[i]}, micro-batch ${all.microbatch[i]}` : "";
        let said = `${kinds[all.kind[i]].name}${all.half[i] ? " (overlapped pair)" : ""} · ${rows[row]} · ${section.name}${cell}\n${time(all, i)}`;
        if (all.waiting && all.stage[i] >= 0) {
          if (all.waiting.after[i] >= 0) said += `\nafter ${cells[all.waiting.after[i]]}`;
          if (all.waiting.cause[i] >= 0) said += `\nthen held up ${all.waiting.wait[i].toFixed(3)} ms: ${causes[all.waiting.cause[i]]}`;
          if (all.waiting.path[i] > 0) said += `\non the critical path: ${all.waiting.path[i].toFixed(3)} ms`;
          if (inLanes(ranks[row])) said += "\ndouble-click: its moment in the lanes";
        }
        return said;
      };
      const open = ({ section, row, boxes: all, i }) => {
        if (section.name !== "measured" || !inLanes(ranks[row])) return;
        const shift = ofStep.ranks[ranks[row]].cells_at_ns / 1e6;
        openLanes(ranks[row], { step: ofStep.step, from: all.start[i] + shift, to: all.end[i] + shift });
      };
      const marked = new Map(unpacked.map(({ boxes: all }) => [all, byRow(all, (i) => all.waiting?.path[i] > 0 && [all.row[i], all.half[i]])]));
      const onPath = [...marked.values()].some((found) => found.size);
      charts[at] = timeline(document.getElementById("schedule-chart"), {
        outlines: onPath ? (all) => marked.get(all) : null, rows, kinds, sections: unpacked, end: end_ns / 1e6, describe, hidden, open, number: (all, i) => (all.microbatch[i] >= 0 ? all.microbatch[i] : ""),
      });
      legend(document.getElementById("schedule-legend"), kinds, hidden, (same, on) => charts[at].toggle(same, on), { shaded, path: onPath });
    };
    if (box) {
      box.replaceChildren(...choices.map(({ name }, which) => new Option(name, which)));
      box.onchange = () => { hidden.clear(); show(Number(box.value)); };
    }
    await show(0);
  }

  async function lanes({ kinds, rows, steps, memory_top }) {
    const cache = new Map(), hidden = new Set(); // what is switched off stays off when another rank or step is chosen
    const [rankBox, stepBox, phaseBox] = ["rank", "step", "phase"].map((name) => document.getElementById(`lanes-${name}`));
    stepBox.replaceChildren(...steps.map(({ step }, which) => new Option(step ?? "all", which)).sort((a, b) => a.text - b.text));
    stepBox.value = 0; // the one the schedule is of
    stepBox.parentElement.hidden = steps.length < 2;
    const here = () => steps[stepBox.value].ranks, lane = () => here()[rankBox.value];
    const offer = () => { // the ranks of the chosen step
      const before = rankBox.value, numbers = Object.keys(here()).sort((a, b) => a - b);
      rankBox.replaceChildren(...numbers.map((rank) => new Option(rank, rank)));
      rankBox.value = numbers.includes(before) ? before : numbers[0];
      rankBox.parentElement.hidden = numbers.length < 2;
    };
    const at = charts.push(null) - 1;
    const phase = () => {
      const found = lane(), chosen = found.phases.find(({ name }) => name === phaseBox.value);
      if (chosen) charts[at].zoom(100 * chosen.start_ns / found.end_ns, 100 * chosen.end_ns / found.end_ns); else charts[at].zoom(0, 100);
    };
    const show = async () => {
      const rank = rankBox.value, found = lane();
      if (!cache.has(found)) cache.set(found, await boxes.unpack(found.boxes));
      if (found !== lane()) return; // another was chosen meanwhile
      const describe = ({ row, boxes: all, i }) => {
        const pass = ["forward", "backward"][all.stage[i]], piece = found.path[all.microbatch[i]];
        if (piece !== undefined) return `${kinds[all.kind[i]].name} · on the critical path\n${time(all, i)}\n${piece}`;
        return `${kinds[all.kind[i]].name}${pass ? ` (${pass} pass)` : ""} · ${rows[row]}\n${time(all, i)}`;
      };
      const all = cache.get(found), onPath = found.path.length > 0;
      const around = byRow(all, (i) => all.microbatch[i] >= 0 && kinds[all.kind[i]].row !== undefined && [kinds[all.kind[i]].row, kinds[all.kind[i]].half]);
      charts[at] = timeline(document.getElementById("lanes-chart"), { outlines: onPath ? () => around : null, rows, kinds, sections: [{ name: `rank ${rank}`, boxes: all }], end: found.end_ns / 1e6, describe, hidden, memory: found.memory && { points: found.memory, top: memory_top } });
      legend(document.getElementById("lanes-legend"), kinds, hidden, (same, on) => charts[at].toggle(same, on), { path: onPath });
      const before = phaseBox.value;
      phaseBox.replaceChildren(new Option("all", ""), ...found.phases.map(({ name }) => new Option(name, name)));
      phaseBox.value = found.phases.some(({ name }) => name === before) ? before : "";
      phaseBox.parentElement.hidden = found.phases.length < 2;
      phase();
    };
    rankBox.onchange = show;
    stepBox.onchange = () => { offer(); show(); };
    phaseBox.onchange = phase;
    offer();
    await show();
    openLanes = async (rank, { step, from, to, only } = {}) => {
      const which = steps.findIndex((one) => one.step === step);
      if (which >= 0) stepBox.value = which;
      offer();
      if (rank !== undefined && rank in here()) rankBox.value = rank;
      if (from !== undefined) phaseBox.value = "";
      if (only !== undefined) {
        hidden.clear();
        kinds.forEach(({ name }, kind) => { if (name !== only) hidden.add(kind); });
      }
      await show();
      const end = lane().end_ns / 1e6, around = (to - from) / 2; // the moment, and half of it on both sides
      if (from !== undefined) charts[at].zoom(100 * (from - around) / end, 100 * (to + around) / end);
      document.getElementById("lanes").scrollIntoView();
      document.getElementById("lanes-chart").focus({ preventScroll: true });
      const which_step = steps.length > 1 ? `, step ${steps[stepBox.value].step}` : "";
      said.textContent = `lanes of rank ${rankBox.value}${which_step}${only === undefined ? "" : `: ${only} alone`}`;
    };
  }

  // A kernel's explanation, in the row under it: opened, closed, or opened and brought into sight.
  function explain(at, shut) {
    const button = document.querySelector(`[data-why="${at}"]`), row = document.getElementById(`why-${at}`);
    if (!button || !row) return;
    row.hidden = shut ? !row.hidden : false;
    button.setAttribute("aria-expanded", String(!row.hidden));
    if (!shut) button.closest("tr").scrollIntoView({ block: "center" });
    said.textContent = row.hidden ? "closed" : row.querySelector("dd").textContent;
  }

  // A rank of the heat map in words: its figures, its lanes where they are here, else the command that makes them.
  function tellCell(cell) {
    const line = document.getElementById("heat-said"), link = line.querySelector("a"), command = line.querySelector(".command");
    const rank = cell.dataset.cell, here = cell.classList.contains("in");
    line.hidden = false;
    line.firstElementChild.textContent = cell.parentElement.title;
    link.hidden = !here;
    link.dataset.rank = rank;
    if (command) {
      const words = `tracekit analyze ${quoted(data.asked)} --ranks ${rank} -o rank-${rank}.html`;
      command.hidden = here;
      command.firstElementChild.textContent = command.querySelector("button").dataset.copy = words;
    }
    said.textContent = cell.parentElement.title;
  }
  const quoted = (words) => (/^[\w@%+=:,./-]+$/.test(words) ? words : `'${words.replaceAll("'", `'"'"'`)}'`);

  // Every number leads somewhere: a rank to its lanes, a moment to where it is, a label to its lanes alone, a command to
  // the clipboard.
  document.addEventListener("click", async (event) => {
    const near = (name) => event.target.closest(`[data-${name}]`), number = (text) => (text === undefined ? undefined : Number(text));
    const rank = near("rank"), label = near("label"), cell = near("cell"), command = near("copy"), why = near("why"), kernel = near("kernel");
    if (why) {
      explain(why.dataset.why, true);
    } else if (kernel) {
      event.preventDefault();
      explain(kernel.dataset.kernel, false);
    } else if (rank && openLanes) {
      event.preventDefault();
      const { step, from, to } = rank.dataset;
      await openLanes(rank.dataset.rank, { step: number(step), from: number(from), to: number(to) });
    } else if (label && openLanes) {
      event.preventDefault();
      await openLanes(undefined, { only: label.dataset.label });
    } else if (cell) {
      tellCell(cell);
    } else if (command) {
      event.preventDefault();
      try {
        await navigator.clipboard.writeText(command.dataset.copy);
      } catch { // a page from a file may not write there: mark the words instead
        const words = command.closest(".command")?.querySelector("code");
        if (words) getSelection().selectAllChildren(words);
      }
      command.classList.add("done");
      setTimeout(() => command.classList.remove("done"), 1500);
      said.textContent = "copied";
    }
  });

  try {
    if (data.schedule) await schedule(data.schedule);
    if (data.lanes && data.lanes.steps.length) await lanes(data.lanes);
  } catch (problem) {
    for (const chart of document.querySelectorAll(".chart")) {
      chart.replaceChildren("The timeline could not be drawn in this viewer; open the file in a current browser. Every figure stands in the tables.");
    }
    throw problem;
  }
  const redraw = () => charts.forEach((one) => { one.chart.resize(); one.draw(); });
  addEventListener("resize", () => charts.forEach((one) => one.chart.resize()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);
  document.documentElement.dataset.ready = "true";
})();
