// The parts of Apache ECharts that tracekit's page uses, as one global named echarts.
import * as core from "echarts/core";
import { BarChart, CustomChart, HeatmapChart } from "echarts/charts";
import {
  AriaComponent, DataZoomComponent, GridComponent, LegendComponent, MarkAreaComponent, TooltipComponent,
  VisualMapComponent,
} from "echarts/components";
import { CanvasRenderer } from "echarts/renderers";

core.use([
  BarChart, CustomChart, HeatmapChart, AriaComponent, DataZoomComponent, GridComponent, LegendComponent,
  MarkAreaComponent, TooltipComponent, VisualMapComponent, CanvasRenderer,
]);
globalThis.echarts = core;
