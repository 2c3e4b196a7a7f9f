// Draws the figures in the colours of the page (light, dark, print).
"use strict";
(() => {
  const setting = JSON.parse(document.getElementById("setting").textContent);
  const dark = matchMedia("screen and (prefers-color-scheme: dark)");
  const figures = [...document.querySelectorAll("script.figure")].map((source) => ({
    div: document.getElementById(source.dataset.plot),
    made: JSON.parse(source.textContent),
  }));
  const config = { displaylogo: false, displayModeBar: false, responsive: true };
  let printing = false;

  const swap = (value) => {
    if (typeof value === "string") return setting.swaps[value] ?? value;
    if (Array.isArray(value)) return value.map(swap);
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, swap(item)]));
    return value;
  };

  const draw = (isDark) =>
    Promise.all(
      figures.map(({ div, made }) => {
        const figure = isDark ? swap(made) : structuredClone(made);
        const layout = figure.layout;
        layout.hoverlabel = { bgcolor: isDark ? "#1d2329" : "#ffffff", bordercolor: layout.xaxis.gridcolor, align: "left" };
        layout.autosize = !printing;
        if (printing) layout.width = 680; // of an A4 page; the window may be of any width
        layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom"; // a finger scrolls the page
        return Plotly.react(div, figure.data, layout, config);
      }),
    );

  dark.addEventListener("change", () => draw(dark.matches));
  addEventListener("beforeprint", () => {
    printing = true;
    draw(false);
  });
  addEventListener("afterprint", () => {
    printing = false;
    draw(dark.matches).then(() => figures.forEach(({ div }) => Plotly.Plots.resize(div)));
  });

  draw(dark.matches).then(() => {
    document.documentElement.dataset.drawn = figures.length; // what a test waits for
  });
})();
