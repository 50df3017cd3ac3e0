// A maze: the map with the way so far.
{
  // The map with the way so far; "?" is a cell of which nothing is known, and the goal may be null.
  const maze = ({ rows, goal }, path, turn) => {
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

  PICTURES.set("maze", { draw: (facts, states, said, turn) => states && maze(facts, states, turn) });
}
