(function () {
  "use strict";
  var figures = JSON.parse(document.getElementById("figures").textContent);
  var config = { responsive: true, displayModeBar: false, displaylogo: false, typesetMath: false };

  // Colours in the figures are names of CSS variables: their values differ between light and dark.
  function coloured(value, style) {
    if (typeof value === "string") {
      return /^--(ui|p)-[a-z0-9]+$/.test(value) ? style.getPropertyValue(value).trim() : value;
    }
    if (Array.isArray(value)) {
      return value.map(function (item) { return coloured(item, style); });
    }
    if (value && typeof value === "object") {
      var copy = {};
      Object.keys(value).forEach(function (key) { copy[key] = coloured(value[key], style); });
      return copy;
    }
    return value;
  }

  // On a phone the names of policies take several lines, so that the bars keep some room.
  function wrapped(text, most) {
    var lines = [""];
    text.split(/ |<br>/).forEach(function (word) {
      var last = lines.length - 1;
      var joined = lines[last] ? lines[last] + " " + word : word;
      if (lines[last] && joined.replace(/<[^>]*>/g, "").length > most) {
        lines.push(word);
      } else {
        lines[last] = joined;
      }
    });
    return lines;
  }

  function narrowed(layout, width) {
    var axis = layout.yaxis;
    if (width < 480 && axis && axis.ticktext) {
      var labels = axis.ticktext.map(function (text) { return wrapped(text, 15); });
      var lines = Math.max.apply(null, labels.map(function (label) { return label.length; }));
      axis.ticktext = labels.map(function (label) { return label.join("<br>"); });
      layout.height += labels.length * Math.max(0, 16 * lines - 26);
    }
    return layout;
  }

  function draw() {
    var style = getComputedStyle(document.documentElement);
    var family = getComputedStyle(document.body).fontFamily;
    Object.keys(figures).forEach(function (id) {
      var place = document.getElementById(id);
      var figure = coloured(figures[id], style);
      figure.layout.font.family = family;
      Plotly.react(place, figure.data, narrowed(figure.layout, place.clientWidth), config);
    });
  }

  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
