"use strict";
// Draws the two timelines. Everything from a trace is put on the page as text or as pixels, never as markup.
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const LABELS_AT_MOST = 700;

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
    const start = new Float64Array(n), end = new Float64Array(n), ms = packed.unit_ns / 1e6;
    for (let i = 0, t = 0; i < n; i++) {
      t += step[i];
      start[i] = t * ms;
      end[i] = (t + length[i]) * ms;
    }
    const first = new Map(); // row → [from, to) of its boxes, which are sorted by start
    for (let i = 0; i < n; i++) {
      const range = first.get(row[i]);
      if (range) range[1] = i + 1; else first.set(row[i], [i, i + 1]);
    }
    return { n, row, kind, half, start, end, stage, microbatch, first };
  }

  // One shape draws all boxes of a row and kind; boxes under half a pixel apart are drawn as one.
  const drawn = [];
  const Boxes = echarts.graphic.extendShape({
    shape: { key: 0, row: 0, kind: 0, x0: 0, scale: 1, top: 0, height: 10, left: 0, right: 0 },
    buildPath(ctx, s) {
      const boxes = drawn[s.key], range = boxes.first.get(s.row);
      if (!range) return;
      for (const half of [0, 1, 2]) {
        const top = half === 2 ? s.top + s.height / 2 : s.top, height = half ? s.height / 2 : s.height;
        let from = NaN, to = NaN;
        const flush = () => { if (from === from) ctx.rect(from, top, Math.max(to - from, 0.6), height); };
        for (let i = range[0]; i < range[1]; i++) {
          if (boxes.kind[i] !== s.kind || boxes.half[i] !== half) continue;
          const a = Math.max(s.x0 + boxes.start[i] * s.scale, s.left), b = Math.min(s.x0 + boxes.end[i] * s.scale, s.right);
          if (b < s.left || a > s.right) continue;
          if (b - a > 4) { flush(); ctx.rect(a, top, b - a - 1, height); from = to = NaN; continue; } // a hair between neighbours
          if (a - to < 0.5) { to = Math.max(to, b); } else { flush(); from = a; to = b; }
        }
        flush();
      }
    },
  });
  echarts.graphic.registerShape("boxes", Boxes);

  const place = (api, row) => {
    const [x0, y] = api.coord([0, row]), [x1] = api.coord([1, row]), height = api.size([0, 1])[1] * 0.84;
    return { x0, scale: x1 - x0, top: y - height / 2, height };
  };

  function timeline(element, { rows, kinds, sections, end, describe, number }) {
    const rowHeight = Math.max(9, Math.min(34, 640 / (rows.length * sections.length)));
    const gridHeight = Math.max(rows.length * rowHeight, 30), gap = 46;
    element.style.height = `${sections.length * (gridHeight + gap) + 54}px`;
    const chart = echarts.getInstanceByDom(element) || echarts.init(element, null, { renderer: "canvas" });
    const hidden = new Set();

    const shapes = (index, kind, name) => {
      const key = drawn.push(sections[index].boxes) - 1;
      return {
        type: "custom", name, xAxisIndex: index, yAxisIndex: index, silent: true, clip: true, animation: false,
        data: rows.map((_, row) => [0, row]), encode: { x: 0, y: 1 },
        renderItem: (params, api) => {
          const { x, width } = params.coordSys;
          const shape = { key, row: api.value(1), kind, left: x, right: x + width, ...place(api, api.value(1)) };
          return { type: "boxes", shape, style: { fill: kinds[kind].colour === "#E8EBEE" ? css("--idle") : kinds[kind].colour } };
        },
      };
    };
    const numbers = (index) => ({
      type: "custom", name: "numbers", xAxisIndex: index, yAxisIndex: index, silent: true, clip: true, animation: false, z: 5,
      data: rows.map((_, row) => [0, row]), encode: { x: 0, y: 1 },
      renderItem: (params, api) => {
        const { first, start, end: ends, half, kind, n } = sections[index].boxes, p = place(api, api.value(1));
        const { x, width } = params.coordSys, range = first.get(api.value(1)), children = [];
        if (!range || p.height < 10) return null;
        for (let i = range[0]; i < range[1] && children.length < LABELS_AT_MOST; i++) {
          const a = p.x0 + start[i] * p.scale, b = p.x0 + ends[i] * p.scale, text = number(sections[index].boxes, i);
          if (b < x || a > x + width || b - a < 9 * String(text).length + 2 || text === "" || hidden.has(kinds[kind[i]].name)) continue;
          const y = p.top + p.height * (half[i] === 0 ? 0.5 : half[i] === 1 ? 0.25 : 0.75);
          const size = Math.min(11, half[i] ? p.height / 2 : p.height - 2);
          if (size < 7) continue;
          children.push({ type: "text", style: { x: (Math.max(a, x) + Math.min(b, x + width)) / 2, y, text, fill: "#16202a", align: "center", verticalAlign: "middle", fontSize: size } });
        }
        return { type: "group", children };
      },
    });

    const draw = () => chart.setOption({
      animation: false,
      legend: { show: false, data: kinds.map((kind) => kind.name) },
      grid: sections.map((_, i) => ({ left: 74, right: 22, top: 26 + i * (gridHeight + gap), height: gridHeight })),
      xAxis: sections.map((_, i) => ({
        gridIndex: i, type: "value", min: 0, max: end, axisLabel: { color: css("--soft"), formatter: (v) => `${+v.toFixed(3)}` }, axisLine: { lineStyle: { color: css("--line") } },
        splitLine: { lineStyle: { color: css("--line"), opacity: 0.6 } }, name: i === sections.length - 1 ? "ms" : "", nameTextStyle: { color: css("--soft") }, nameGap: 6,
      })),
      yAxis: sections.map((section, i) => ({
        gridIndex: i, type: "category", data: rows, inverse: true, name: section.name, nameLocation: "start", nameTextStyle: { color: css("--ink"), fontWeight: 600, align: "right" },
        axisLabel: { color: css("--soft"), fontSize: Math.min(12, rowHeight), interval: rowHeight < 12 ? "auto" : 0 }, axisTick: { show: false }, axisLine: { show: false },
      })),
      dataZoom: [
        { type: "inside", xAxisIndex: sections.map((_, i) => i), filterMode: "none", minSpan: 0.02 },
        { type: "slider", xAxisIndex: sections.map((_, i) => i), filterMode: "none", bottom: 6, height: 18, brushSelect: false, showDetail: false },
      ],
      series: sections.flatMap((_, i) => [...kinds.map((kind, k) => shapes(i, k, kind.name)), ...(number ? [numbers(i)] : [])]),
    }, { replaceMerge: ["series", "grid", "xAxis", "yAxis"] });
    draw();

    const find = (x, y) => {
      for (let index = 0; index < sections.length; index++) {
        if (!chart.containPixel({ gridIndex: index }, [x, y])) continue;
        const [time, row] = chart.convertFromPixel({ gridIndex: index }, [x, y]);
        const boxes = sections[index].boxes, range = boxes.first.get(Math.round(row));
        if (!range) return null;
        const centre = chart.convertToPixel({ gridIndex: index }, [time, Math.round(row)])[1], half = y < centre ? 1 : 2;
        let best = null;
        for (let i = range[0]; i < range[1] && boxes.start[i] <= time; i++) {
          if (boxes.end[i] >= time && (boxes.half[i] === 0 || boxes.half[i] === half) && !hidden.has(kinds[boxes.kind[i]].name)) best = i;
        }
        return best === null ? null : { section: sections[index], row: Math.round(row), boxes, i: best };
      }
      return null;
    };
    const zr = chart.getZr();
    zr.off("mousemove"); zr.off("globalout");
    zr.on("mousemove", (event) => {
      const hit = find(event.offsetX, event.offsetY);
      tip.hidden = !hit;
      if (!hit) return;
      tip.textContent = describe(hit);
      const box = element.getBoundingClientRect(), width = tip.offsetWidth;
      tip.style.left = `${Math.min(box.left + event.offsetX + 14, innerWidth - width - 8)}px`;
      tip.style.top = `${box.top + event.offsetY + 16}px`;
    });
    zr.on("globalout", () => { tip.hidden = true; });

    const zoom = (from, to) => chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, start: Math.max(0, from), end: Math.min(100, to) });
    element.onkeydown = (event) => {
      const { start, end: stop } = chart.getOption().dataZoom[0], width = stop - start, middle = (start + stop) / 2;
      const moves = { ArrowLeft: [start - width / 5, stop - width / 5], ArrowRight: [start + width / 5, stop + width / 5],
        "+": [middle - width / 3, middle + width / 3], "=": [middle - width / 3, middle + width / 3], "-": [middle - width * 0.75, middle + width * 0.75], 0: [0, 100] };
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      zoom(...move);
    };
    const toggle = (name, on) => {
      if (on) hidden.delete(name); else hidden.add(name);
      chart.dispatchAction({ type: on ? "legendSelect" : "legendUnSelect", name });
    };
    return { chart, draw, zoom, toggle };
  }

  function legend(element, kinds, toggle) {
    element.replaceChildren(...kinds.map(({ name, colour }) => {
      const button = document.createElement("button"), key = document.createElement("i");
      key.style.background = colour;
      button.append(key, name);
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.onclick = () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        toggle(name, on);
      };
      return button;
    }));
  }

  const time = (boxes, i) => `${boxes.start[i].toFixed(3)} to ${boxes.end[i].toFixed(3)} ms\n${(boxes.end[i] - boxes.start[i]).toFixed(3)} ms long`;
  const charts = [];

  if (data.schedule) {
    const { kinds, rows, sections, end_ns } = data.schedule;
    const unpacked = await Promise.all(sections.map(async (s) => ({ name: s.name, boxes: await unpack(s.boxes) })));
    const describe = ({ section, row, boxes, i }) => {
      const cell = boxes.stage[i] >= 0 ? `\nstage ${boxes.stage[i]}, micro-batch ${boxes.microbatch[i]}` : "";
      return `${kinds[boxes.kind[i]].name}${boxes.half[i] ? " (overlapped pair)" : ""} · ${rows[row]} · ${section.name}${cell}\n${time(boxes, i)}`;
    };
    const chart = timeline(document.getElementById("schedule-chart"), {
      rows, kinds, sections: unpacked, end: end_ns / 1e6, describe, number: (boxes, i) => (boxes.microbatch[i] >= 0 ? boxes.microbatch[i] : ""),
    });
    legend(document.getElementById("schedule-legend"), kinds, chart.toggle);
    charts.push(chart);
  }

  if (data.lanes && Object.keys(data.lanes.ranks).length) {
    const { kinds, rows, ranks } = data.lanes, cache = new Map();
    const rankBox = document.getElementById("lanes-rank"), phaseBox = document.getElementById("lanes-phase");
    rankBox.replaceChildren(...Object.keys(ranks).map((rank) => new Option(rank, rank)));
    let chart = null;
    const show = async () => {
      const found = ranks[rankBox.value];
      if (!cache.has(rankBox.value)) cache.set(rankBox.value, await unpack(found.boxes));
      const describe = ({ row, boxes, i }) => {
        const pass = ["forward", "backward"][boxes.stage[i]];
        return `${kinds[boxes.kind[i]].name}${pass ? ` (${pass} pass)` : ""} · ${rows[row]}\n${time(boxes, i)}`;
      };
      chart = timeline(document.getElementById("lanes-chart"), { rows, kinds, sections: [{ name: `rank ${rankBox.value}`, boxes: cache.get(rankBox.value) }], end: found.end_ns / 1e6, describe });
      charts[1] = chart;
      legend(document.getElementById("lanes-legend"), kinds, chart.toggle);
      phaseBox.replaceChildren(new Option("whole step", ""), ...found.phases.map((phase, i) => new Option(phase.name, i)));
    };
    rankBox.onchange = show;
    phaseBox.onchange = () => {
      const found = ranks[rankBox.value], phase = found.phases[phaseBox.value];
      if (phase) chart.zoom(100 * phase.start_ns / found.end_ns, 100 * phase.end_ns / found.end_ns); else chart.zoom(0, 100);
    };
    await show();
  } else {
    document.getElementById("lanes").hidden = true;
  }

  addEventListener("resize", () => charts.forEach((one) => one && one.chart.resize()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((one) => one && one.draw()));
  addEventListener("beforeprint", () => charts.forEach((one) => one && one.chart.resize()));
  document.documentElement.dataset.ready = "true";
})();
