"use strict";
// Pictures of games and what was said in them. Texts become text nodes and attributes of fixed names, never markup.
const make = (tag, attributes, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const draw = (tag, attributes, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

const number = (value) => value === null ? "–" : (Number.isInteger(value) ? String(value) : value.toFixed(2)).replace("-", "−");

const tiles = (guesses, answers) => {
  const found = make("div", { class: "tiles" });
  guesses.forEach((guess, turn) => {
    const letters = [...guess.replace(/\s/g, "")], colours = answers[turn].replace(/\s/g, "");
    const legal = /^[gyb]{5}$/.test(colours) && letters.length === 5;
    for (let place = 0; place < 5; place++) {
      const colour = legal ? colours[place] : "x";
      const words = { g: "here", y: "elsewhere", b: "not in the word", x: "not a word" }[colour];
      found.append(make("span", { class: "tile " + colour, title: words }, letters[place] || " "));
    }
  });
  return found;
};

// The ranks of a position with a space between all characters, or null.
const ranks = (text) => {
  const fen = [...text.replace(/\n$/, "")].filter((_, place) => place % 2 === 0).join("");
  const rows = fen.split(" ")[0].split("/").map((row) => row.replace(/\d/g, (n) => ".".repeat(Number(n))));
  return rows.length === 8 && rows.every((row) => /^[prnbqkPRNBQK.]{8}$/.test(row)) ? rows : null;
};

const board = (text, before) => {
  const rows = ranks(text), earlier = before === undefined ? null : ranks(before);
  if (!rows) return null;
  const svg = draw("svg", { viewBox: "-14 0 174 174", class: "board", role: "img", "aria-label": "chess board" });
  for (let r = 0; r < 8; r++) {
    svg.append(draw("text", { x: -7, y: r * 20 + 13, "font-size": 8, "text-anchor": "middle", class: "label" }, String(8 - r)));
    svg.append(draw("text", { x: r * 20 + 10, y: 171, "font-size": 8, "text-anchor": "middle", class: "label" }, "abcdefgh"[r]));
    for (let c = 0; c < 8; c++) {
      const changed = earlier && earlier[r][c] !== rows[r][c], dark = (r + c) % 2;
      const fill = changed ? (dark ? "#b9a53f" : "#e8dc86") : dark ? "#9db3c6" : "#edf1f4";
      svg.append(draw("rect", { x: c * 20, y: r * 20, width: 20, height: 20, fill, "data-square": "abcdefgh"[c] + (8 - r) }));
      const piece = rows[r][c];
      if (piece === ".") continue;
      const white = piece !== piece.toLowerCase(), glyph = "♟♜♞♝♛♚"["prnbqk".indexOf(piece.toLowerCase())];
      const paint = white ? { fill: "#fff", stroke: "#222", "stroke-width": 0.7 } : { fill: "#222" };
      svg.append(draw("text", { x: c * 20 + 10, y: r * 20 + 16.2, "font-size": 18, "text-anchor": "middle", "paint-order": "stroke", "pointer-events": "none", ...paint }, glyph + "\ufe0e"));
    }
  }
  return svg;
};

// The map with the way so far; "?" is a cell of which nothing is known, and the goal may be null.
const maze = (rows, goal, path, turn) => {
  const size = 20, width = rows[0].length * size, height = rows.length * size, rim = goal ? size / 2 : 0;
  const seen = `${rim} ${rim} ${width - 2 * rim} ${height - 2 * rim}`;  // half of the outer wall is enough to see that it is one
  const svg = draw("svg", { viewBox: seen, role: "img", ...(goal ? { "aria-label": "the way through the maze" } : { "aria-label": "the cells around", class: "around" }) });
  if (goal) svg.append(draw("rect", { width, height, class: "wall" }));
  rows.forEach((row, r) => [...row].forEach((mark, c) => {
    if (mark !== "?" && (mark !== "#" || !goal))
      svg.append(draw("rect", { x: c * size + 0.5, y: r * size + 0.5, width: size - 1, height: size - 1, class: mark === "#" ? "wall" : "floor" }));
  }));
  const middle = ([r, c]) => [(c + 0.5) * size, (r + 0.5) * size];
  const here = ([x, y]) => svg.append(draw("circle", { cx: x, cy: y, r: 4.5, class: "here" }));
  if (!goal) {
    here(middle(path[turn]));
    return svg;
  }
  const [gx, gy] = middle(goal);
  svg.append(draw("text", { x: gx, y: gy + 6, "font-size": 17, "text-anchor": "middle", class: "goal" }, "★"));
  // Each step a little beside the cell's middle, so that a way walked twice shows twice.
  const points = path.slice(0, turn + 1).map(middle).map(([x, y], step) => [x + ((step * 4) % 7) - 3, y + ((step * 3) % 7) - 3]);
  for (let step = 1; step < points.length; step++) {
    const [[x1, y1], [x2, y2]] = [points[step - 1], points[step]];
    const share = step / Math.max(1, path.length - 1);
    svg.append(draw("line", { x1, y1, x2, y2, stroke: `hsl(${205 - 185 * share} 75% 45%)`, "stroke-width": 2, "stroke-linecap": "round", opacity: 0.75 }));
  }
  const [sx, sy] = middle(path[0]);
  svg.append(draw("circle", { cx: sx, cy: sy, r: 7, class: "start" }));
  here(points[points.length - 1]);
  return svg;
};

// Where an episode stands after `turn` turns, or null if its task is not drawn.
const picture = ({ kind, rows, goal }, path, said, turn) => {
  const actions = said.filter((_, place) => place % 2), texts = said.filter((_, place) => place % 2 === 0);
  if (kind === "wordle") return tiles(actions, texts.slice(1));
  if (kind === "chess") return board(texts[turn], turn ? texts[turn - 1] : undefined);
  return kind === "maze" && path ? maze(rows, goal, path, turn) : null;
};

// All that was said. The player's own lines have a note beside them; `words` may show them otherwise, and `choose` is
// called with the turn that a click on one leads to.
const dialogue = (said, note, choose, words) => {
  const list = make("ol");
  said.forEach((text, place) => {
    const turn = place >> 1, own = place % 2;
    const shown = make("span", { class: "text" });
    if (own && words) shown.append(...words(turn));
    else shown.append(text.replace(/\n$/, "") || make("span", { class: "soft" }, own ? "(an empty line)" : "(no text)"));
    const row = make("li", own ? { class: choose ? "own leads" : "own", "data-turn": turn + 1 } : {}, make("span", { class: "turn" }, own ? String(turn + 1) : ""), shown);
    if (own) row.append(make("span", { class: "reward" }, note(turn)));
    if (own && choose) row.addEventListener("click", () => choose(turn + 1));
    list.append(row);
  });
  return list;
};
