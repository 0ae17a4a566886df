// Colours and weights of text in a terminal.

const codes = { red: 31, green: 32, yellow: 33, blue: 34, gray: 90, bold: 1 } as const;

/** Text style. */
export type Style = keyof typeof codes;

/** Applies a style to text. */
export type Paint = (style: Style | undefined, text: string) => string;

/** Returns a function that applies styles, or leaves text unchanged without colours. */
export function painter(hasColor: boolean): Paint {
  return (style, text) => (hasColor && style !== undefined ? `\u001b[${codes[style]}m${text}\u001b[0m` : text);
}
