// The page of a diff: two runs on one timeline, each from its step's start, with matched kernels and cells coloured by
// how their durations differ.
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent), byId = (id) => document.getElementById(id);
  const MIN_CHANGE = 0.1; // relative change of a duration from which it is coloured
  const [SLOWER, FASTER, SAME, UNMATCHED, OUTSIDE] = [0, 1, 2, 3, 4];
  const extraKinds = [
    { name: "takes over 10 % longer after", colour: "#D55E00" }, { name: "takes over 10 % less after", colour: "#5B8DEF" },
    { name: "about the same", colour: "#9AA5B1" }, { name: "not matched", colour: "#CC79A7" },
    { name: "", colour: "dim" }, // outside the compared steps
  ];
  const comparableCells = data.comparable_cells !== false;
  let colouring = true, timeline = null, timelineKinds = [];

  const chosen = [0, 0]; // index of the step of each side
  const stepOf = (side) => data.sides[side].timeline.steps[chosen[side]];
  const kindOfChange = (before, after) => {
    const change = before > 0 ? after / before - 1 : 0;
    return change > MIN_CHANGE ? SLOWER : change < -MIN_CHANGE / (1 + MIN_CHANGE) ? FASTER : SAME;
  };
  const changeText = (before, after) => `${before.toFixed(4)} → ${after.toFixed(4)} ms (${after >= before ? "+" : "−"}`
    + `${Math.abs(100 * (after / Math.max(before, 1e-9) - 1)).toFixed(0)} %)`;

  // Match events of both runs: on the same rank, the nth event of a kernel name and label within the chosen steps is
  // the nth of the other run, if both have equally many. Cells are matched by op, stage and micro-batch, if both runs
  // cut the model into equal stages; otherwise they keep the colours of their ops.
  function matchRuns(sources) {
    // -2: outside the chosen step, -1: in it, but without a counterpart.
    const inStep = (side, rank, boxes, i) => {
      const { steps } = sources[side].run.ranks[sources[side].run.rankIndex.get(rank)] ?? { steps: [] };
      const window = steps.find(({ step }) => step === stepOf(side).step), middle = (boxes.start[i] + boxes.end[i]) / 2;
      return window && middle >= window.from_ms + sources[side].shift && middle <= window.to_ms + sources[side].shift;
    };
    sources.forEach(({ run, cells }, side) => {
      for (const { rank, events } of run.ranks) {
        events.counterpart = Int32Array.from(events.start, (_, i) => (inStep(side, rank, events, i) ? -1 : -2));
      }
      if (cells) cells.counterpart = Int32Array.from(cells.start, (_, i) => (inStep(side, cells.rank[i], cells, i) ? -1 : -2));
    });
    const pair = (before, after) => {
      for (const [key, list] of before.lists) {
        const others = after.lists.get(key);
        if (others?.length !== list.length) continue;
        list.forEach((i, n) => { before.boxes.counterpart[i] = others[n]; after.boxes.counterpart[others[n]] = i; });
      }
    };
    const listsOf = (boxes, keyOf) => {
      const lists = new Map();
      for (let i = 0; i < boxes.count; i++) {
        if (boxes.counterpart[i] === -2) continue;
        const key = keyOf(i);
        if (lists.has(key)) lists.get(key).push(i); else lists.set(key, [i]);
      }
      return { boxes, lists };
    };
    for (const rank of sources[0].run.ranks) {
      const other = sources[1].run.ranks[sources[1].run.rankIndex.get(rank.rank)];
      if (!other) continue;
      pair(...[rank, other].map(({ events }, side) => {
        const { run } = sources[side], keys = run.stream.map((_, number) => `${run.text("name", number)}\n${run.text("label", number)}`);
        return listsOf(events, (i) => keys[events.description[i]]);
      }));
    }
    if (comparableCells && sources.every(({ cells }) => cells)) {
      pair(...sources.map(({ cells }) => listsOf(cells, (i) => [
        cells.rank[i], timelineKinds[cells.opKind[i]].cell, cells.stage[i], cells.microbatch[i], cells.part[i],
      ].join())));
    }
  }

  // Durations before and after of an event or cell; null without a counterpart.
  function durations(boxes, otherBoxes, i, side) {
    const other = boxes.counterpart[i];
    if (other < 0) return null;
    const own = boxes.end[i] - boxes.start[i], theirs = otherBoxes.end[other] - otherBoxes.start[other];
    return side === 0 ? [own, theirs] : [theirs, own];
  }

  async function drawTimeline() {
    const runs = await Promise.all(data.sides.map(({ timeline: packed }) => runEvents.load(packed)));
    data.sides.forEach(({ timeline: { steps }, schedule }, side) => {
      chosen[side] = Math.max(0, steps.findIndex(({ step }) => step === schedule?.choices[0].step));
    });
    const sources = runs.map((run, side) => ({ run, name: ["before", "after"][side], schedule: data.sides[side].schedule, path_name: data.sides[side].path }));
    const sideOf = (source) => sources.indexOf(source), otherOf = (source) => sources[1 - sideOf(source)];
    const otherRank = (source, rank) => { const { run } = otherOf(source); return run.ranks[run.rankIndex.get(rank.rank)]; };
    const eventDurations = (source, rank, i) => {
      const other = otherRank(source, rank);
      return other ? durations(rank.events, other.events, i, sideOf(source)) : null;
    };
    const cellDurations = (source, i) => {
      const other = otherOf(source).cells;
      return other ? durations(source.cells, other, i, sideOf(source)) : null;
    };
    const kindOf = (pair, counterpart) => (pair ? kindOfChange(...pair) : counterpart === -2 ? OUTSIDE : UNMATCHED);
    const noteOf = (pair, counterpart) => (pair ? `\nbefore → after: ${changeText(...pair)}`
      : counterpart === -2 ? "\noutside the compared step" : "\nnot matched with the other run");
    const noteOfCell = (source, i) => (comparableCells ? noteOf(cellDurations(source, i), source.cells.counterpart[i])
      : "\nnot compared: cells of the other run hold other parts of the model");
    let field = null, remember = null;
    const window = () => { // the longer of both steps, with a margin
      const longest = Math.max(...[0, 1].map((side) => stepOf(side).to_ms - stepOf(side).from_ms));
      return [-0.02 * longest, 1.02 * longest];
    };
    timeline = await timelines.create({
      element: byId("timeline-chart"), legend: byId("timeline-legend"), rankButtons: byId("timeline-ranks"), laneButtons: byId("timeline-lanes"), openButtons: byId("timeline-open"),
      rankField: byId("timeline-rank-field"), selectsArea: () => byId("select-area").getAttribute("aria-pressed") === "true",
      area: (figures) => detailsPanel.drawArea(byId("details"), timeline, figures),
      sources, different: new Map(data.changed ? [[data.changed.rank, data.changed.text]] : []), pinned: data.changed ? [data.changed.rank] : [], extraKinds, window: window(), shifts: [0, 1].map((side) => -stepOf(side).from_ms),
      prepare: (all, kinds) => { timelineKinds = kinds; matchRuns(all); },
      colouring: () => colouring,
      colour: (source, rank, i) => (colouring ? kindOf(eventDurations(source, rank, i), rank.events.counterpart[i]) : null),
      colourCell: (source, i) => (colouring && comparableCells ? kindOf(cellDurations(source, i), source.cells.counterpart[i]) : null),
      describe: (source, rank, i) => noteOf(eventDurations(source, rank, i), rank.events.counterpart[i]),
      describeCell: noteOfCell,
      partners: ({ source, rank, event }) => {
        const other = otherRank(source, rank), number = rank.events.counterpart[event];
        return other && number >= 0 ? [{ source: otherOf(source), rank: other, event: number }] : [];
      },
      details: (selection) => detailsPanel.draw(byId("details"), timeline, selection, null),
      cellPartners: (source, i) => (source.cells.counterpart[i] >= 0 ? [{ lane: "cells", source: otherOf(source), box: source.cells.counterpart[i] }] : []),
      host: (source, rank, i) => detailsPanel.drawHost(byId("details"), timeline, source, rank, i),
      shared: (lane, source, i, partners) => detailsPanel.drawShared(byId("details"), timeline, lane, source, i, partners),
      changed: () => remember?.(),
      setQuery: (query) => field.set(query), focusSearch: () => byId("find").focus(),
    });
    field = searchField.create({
      input: byId("find"), summary: byId("find-summary"), list: byId("find-list"), previous: byId("find-previous"),
      next: byId("find-next"), clear: byId("find-clear"),
    }, () => timeline);
    timeline.isDiff = true;
    timeline.find = field.set;
    byId("select-area").onclick = ({ currentTarget: button }) => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      byId("timeline-chart").classList.toggle("selecting", button.getAttribute("aria-pressed") === "true");
    };
    timeline.link = () => `${location.href.split("#")[0]}#${timeline.viewText()}`;
    timeline.factsOf = ({ source, rank, event }) => {
      const pair = eventDurations(source, rank, event);
      return ["before → after", pair ? changeText(...pair)
        : rank.events.counterpart[event] === -2 ? "outside the compared step" : "not matched: the other run has another number of this kernel in its step"];
    };
    timeline.cellFacts = (source, i) => ["before → after", noteOfCell(source, i).replace(/^\n(before → after: )?/, "")];
    byId("copy-link").onclick = (event) => detailsPanel.copy(timeline.link(), event.currentTarget);
    ["before", "after"].forEach((name, side) => {
      const select = byId(`step-${name}`), { steps } = data.sides[side].timeline;
      select.replaceChildren(...steps.map(({ step }, i) => new Option(step ?? "all", i)));
      select.value = chosen[side];
      select.parentElement.hidden = steps.length < 2;
      select.onchange = () => {
        chosen[side] = Number(select.value);
        timeline.shiftSource(sources[side], -stepOf(side).from_ms);
        matchRuns(sources);
        timeline.colourEvents();
        timeline.rebuild();
        timeline.chart.setWindow(...window());
      };
    });
    const drawColourButtons = () => byId("colour-by").replaceChildren(...[["difference", true], ["label", false]].map(([name, on]) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.setAttribute("aria-pressed", String(colouring === on));
      button.onclick = () => { colouring = on; drawColourButtons(); timeline.colourEvents(); timeline.redrawLegend(); };
      return button;
    }));
    drawColourButtons();
    if (location.hash.startsWith("#view:")) timeline.applyView(decodeURI(location.hash));
    remember = timelines.keepInHistory(() => timeline);
  }

  // Select a cell of the compared step after the change (before it, if there is none): rank, op, stage, micro-batch.
  function showCell(rank, op, stage, microbatch) {
    const opOf = (name) => (name.startsWith("forward") ? "F" : name.startsWith("wgrad") ? "W" : "B");
    for (const source of [...timeline.sources].reverse()) {
      const { cells } = source;
      for (let i = 0; i < (cells?.count ?? 0); i++) {
        const isIt = cells.counterpart[i] !== -2 && cells.rank[i] === Number(rank) && cells.stage[i] === Number(stage)
          && cells.microbatch[i] === Number(microbatch) && opOf(timelineKinds[cells.opKind[i]].cell) === (op === "F" || op === "W" ? op : "B");
        if (isIt) { timeline.showShared("cells", source, i, { reveal: true }); return; }
      }
    }
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("main [data-find], main [data-cell], main [data-rank]");
    if (!link || !timeline) return;
    event.preventDefault();
    const { find, rank, cell } = link.dataset;
    if (find) timeline.find(find);
    timeline.setRanks(rank === undefined ? timeline.ranks : [Number(rank)]);
    byId("timeline").scrollIntoView();
    if (cell) showCell(...cell.split(","));
  });
  sortableTables.enhance();
  if (data.sides.length) await drawTimeline();
  addEventListener("resize", () => timeline?.chart.resize());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => timeline?.chart.resize());
  charts.drawOnPaper(() => (timeline ? [timeline.chart] : []));
  globalThis.tracekit = { timeline, drawn: { timeline: timeline?.chart } }; // for tests and the console
  document.documentElement.dataset.ready = "true";
})();
