// Files made in the browser.

/** Saves a value as a JSON file. */
export function saveJson(name: string, value: unknown): void {
  const url = URL.createObjectURL(new Blob([`${JSON.stringify(value, undefined, 2)}\n`], { type: 'application/json' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  // The browser has taken the content when the click returns, but some look the URL up a little later.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
