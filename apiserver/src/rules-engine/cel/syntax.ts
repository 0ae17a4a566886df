// Finds where an expression that does not parse goes wrong. Pure. The parser reports the last place at which the
// expression could have ended, which for a missing operand or bracket is far from the mistake.

/** A mistake at an offset in UTF-16 units. */
export interface SyntaxMistake {
  readonly offset: number;
  readonly message: string;
}

const token =
  /(?<space>\s+|\/\/[^\n]*)|(?<text>[rRbB]{0,2}(?:"""[^]*?"""|'''[^]*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))|(?<quote>["'])|(?<number>\d[\w.]*(?:(?<=[eE])[+-]\d+)?|\.\d\w*)|(?<name>in\b|[A-Za-z_]\w*)|(?<operator>&&|\|\||[<>=!]=|[<>+\-*/%!?:,.])|(?<open>[([{])|(?<close>[)\]}])|(?<other>[^])/gy;

const closing: Readonly<Record<string, string>> = { '(': ')', '[': ']', '{': '}' };

/** Returns the first mistake in the order of tokens, or undefined if it is of another kind. */
export function syntaxMistake(expression: string): SyntaxMistake | undefined {
  const open: { readonly text: string; readonly offset: number }[] = [];
  let wantsOperand = true;
  let before = '';
  for (const match of expression.matchAll(token)) {
    const [text] = match;
    const groups = match.groups!;
    const at = (message: string): SyntaxMistake => ({ offset: match.index, message });
    if (groups['space'] !== undefined) continue;
    if (groups['quote'] !== undefined) return at('the string is not closed');
    if (groups['other'] !== undefined) return at(`${JSON.stringify(text)} has no meaning here`);
    const isOperand = groups['text'] ?? groups['number'] ?? (text === 'in' ? undefined : groups['name']);
    if (isOperand !== undefined) {
      if (!wantsOperand) return at(`an operator is missing before ${text.slice(0, 40)}`);
      wantsOperand = false;
    } else if (groups['open'] !== undefined) {
      open.push({ text, offset: match.index });
      wantsOperand = true;
    } else if (groups['close'] !== undefined) {
      const last = open.pop();
      if (!last || closing[last.text] !== text) return at(`'${text}' closes nothing`);
      if (wantsOperand && before !== last.text && before !== ',') return at(`a value is missing before '${text}'`);
      wantsOperand = false;
    } else if (wantsOperand && text !== '!' && text !== '-' && text !== '.') {
      return at(`a value is missing before '${text}'`);
    } else wantsOperand = true;
    before = text;
  }
  const last = open.at(-1);
  if (wantsOperand) return { offset: expression.trimEnd().length, message: 'a value is missing at the end' };
  return last && { offset: last.offset, message: `'${last.text}' is not closed` };
}
