// Draws the figures in the colours of the page (light, dark, print), and lets those over time zoom together.
"use strict";
(() => {
  const setting = JSON.parse(document.getElementById("setting").textContent);
  const dark = matchMedia("screen and (prefers-color-scheme: dark)");
  const whole = [0, setting.length_s / setting.clock_s];
  const button = document.getElementById("whole");
  const figures = [...document.querySelectorAll("script.figure")].map((source) => ({
    div: document.getElementById(source.dataset.plot),
    made: JSON.parse(source.textContent),
    timed: source.dataset.axis !== "own",
  }));
  const config = { displaylogo: false, displayModeBar: false, responsive: true };
  let range = whole;
  let linking = false;
  let printing = false;

  const swap = (value) => {
    if (typeof value === "string") return setting.swaps[value] ?? value;
    if (Array.isArray(value)) return value.map(swap);
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, swap(item)]));
    return value;
  };

  const coloured = ({ made, timed }, isDark) => {
    const figure = isDark ? swap(made) : structuredClone(made);
    const layout = figure.layout;
    layout.hoverlabel = { ...layout.hoverlabel, bgcolor: isDark ? "#1d2329" : "#ffffff", bordercolor: layout.xaxis.gridcolor };
    layout.autosize = !printing;
    if (printing) layout.width = 680; // of an A4 page; the window may be of any width
    layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom"; // a finger scrolls the page
    if (timed) for (const key of Object.keys(layout)) if (/^xaxis\d*$/.test(key)) layout[key].range = [...range];
    return figure;
  };

  const timed = figures.filter((one) => one.timed);

  const draw = (isDark) =>
    Promise.all(
      figures.map((one) => {
        const figure = coloured(one, isDark);
        return Plotly.react(one.div, figure.data, figure.layout, { ...config, doubleClick: one.timed ? false : "reset" });
      }),
    );

  const zoom = async (wanted) => {
    linking = true;
    range = wanted;
    button.disabled = wanted === whole;
    await Promise.all(timed.map(({ div }) => Plotly.relayout(div, { "xaxis.range": [...wanted] })));
    linking = false;
  };

  const zoomed = (change) => {
    if (linking) return;
    const key = Object.keys(change).find((name) => /^xaxis\d*\.range(\[0\])?$/.test(name));
    if (!key) return;
    const axis = key.split(".")[0];
    zoom(change[`${axis}.range`] ?? [change[`${axis}.range[0]`], change[`${axis}.range[1]`]]);
  };

  button?.addEventListener("click", () => zoom(whole));
  for (const row of document.querySelectorAll("button.goto")) {
    row.addEventListener("click", () => {
      const [from, to] = [Number(row.dataset.from), Number(row.dataset.to)];
      const around = 2 * (to - from);
      zoom([Math.max(0, from - around) / setting.clock_s, Math.min(setting.length_s, to + around) / setting.clock_s]);
      document.getElementById("ttft").scrollIntoView({ behavior: "smooth" });
    });
  }
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
    for (const { div } of timed) {
      div.on("plotly_relayout", zoomed);
      div.on("plotly_doubleclick", () => zoom(whole));
    }
    document.documentElement.dataset.drawn = figures.length; // what a test waits for
  });
})();
