// What a model thinks of the words that were said: a token is [text, probability, V before it, Q].
const MEASURES = [
  { name: "A", words: "advantage Q − V", of: ([, , v, q]) => (v === null || q === null ? null : q - v), both: true },
  { name: "V", words: "V before the token", of: ([, , v]) => v },
  { name: "Q", words: "Q of the token", of: ([, , , q]) => q },
  { name: "p", words: "probability", of: ([, p]) => p },
];

// The colours' ends, without the outermost two percent; null where nothing is known.
const scaleOf = (tokens, { name, of, both }) => {
  const seen = tokens.map(of).filter((value) => value !== null).sort((a, b) => a - b);
  if (!seen.length) return null;
  const at = (share) => seen[Math.round(share * (seen.length - 1))];
  const most = Math.max(Math.abs(at(0.02)), Math.abs(at(0.98))) || 1;
  return name === "p" ? [0, 1] : both ? [-most, most] : [at(0.02), at(0.98)];
};

const colour = (share, both) => {
  const held = Math.min(1, Math.max(0, share));
  if (!both) return `color-mix(in srgb, #3b8fc2 ${Math.round(75 * held)}%, white)`;
  const [hue, strength] = held < 0.5 ? ["#d9822b", 1 - 2 * held] : ["#2f86bd", 2 * held - 1];
  return `color-mix(in srgb, ${hue} ${Math.round(80 * strength)}%, white)`;
};

const tokenShown = (said, token, known, measure, scale) => {
  const text = said.replace(/\n/g, "⏎"), value = measure.of(token);
  const all = known.map(({ name, of }) => `${name} ${of(token) === null ? "–" : of(token).toFixed(3)}`).join("   ");
  const shown = make("span", { class: "token", title: all }, text);
  if (value === null || !scale) return shown;
  const [low, high] = scale;
  shown.style.background = colour(high > low ? (value - low) / (high - low) : 0.5, measure.both);
  shown.append(make("small", {}, value.toFixed(2).replace("-", "−")));
  return shown;
};
