// A chess board; squares that differ from the position before are marked.
{
  // The ranks of a position with a space between all characters, or null.
  const ranks = (text) => {
    const fen = [...text.replace(/\n$/, "")].filter((_, place) => place % 2 === 0).join("");
    const rows = fen.split(" ")[0].split("/").map((row) => row.replace(/\d/g, (n) => ".".repeat(Number(n))));
    return rows.length === 8 && rows.every((row) => /^[prnbqkPRNBQK.]{8}$/.test(row)) ? rows : null;
  };

  // The men by their squares, for those who hear the page.
  const NAMES = { p: "pawn", r: "rook", n: "knight", b: "bishop", q: "queen", k: "king" };
  const told = (rows) => rows.flatMap((row, r) => [...row].map((piece, c) => piece === "." ? "" :
    `${piece === piece.toLowerCase() ? "black" : "white"} ${NAMES[piece.toLowerCase()]} ${"abcdefgh"[c]}${8 - r}`)).filter(Boolean).join(", ");

  const board = (text, before) => {
    const rows = ranks(text), earlier = before === undefined ? null : ranks(before);
    if (!rows) return null;
    const svg = draw("svg", { viewBox: "-14 0 174 174", class: "board", role: "img", "aria-label": `chess board: ${told(rows)}` });
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

  PICTURES.set("chess", {
    draw: (facts, states, said, turn) => board(said[2 * turn], turn ? said[2 * turn - 2] : undefined),
  });
}
