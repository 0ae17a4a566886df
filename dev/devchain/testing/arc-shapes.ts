// Shapes of the processor's responses and callbacks as observed at a real ARC v1.5: the fields and their allowed
// values. A response has exactly these fields.

/** A test for each field. */
export type Shape = Readonly<Record<string, (value: unknown) => boolean>>;

const text = (value: unknown) => typeof value === 'string';
const empty = (value: unknown) => value === '';
const zero = (value: unknown) => value === 0;
const nothing = (value: unknown) => value === null;
const whole = (value: unknown) => Number.isInteger(value) && (value as number) > 0;
const hash = (value: unknown) => text(value) && /^[0-9a-f]{64}$/.test(value);
const hex = (value: unknown) => text(value) && /^([0-9a-f]{2})+$/.test(value);
const txids = (value: unknown) => Array.isArray(value) && value.length > 0 && value.every(hash);
const time = (value: unknown) => text(value) && /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z$/.test(value);
const is = (expected: unknown) => (value: unknown) => value === expected;

const unmined = { blockHash: empty, blockHeight: zero, merklePath: empty, timestamp: time, txid: hash };
const mined = { blockHash: hash, blockHeight: whole, merklePath: hex, timestamp: time, txid: hash };
const posted = { status: is(200), title: is('OK') };

/** `GET /v1/tx/{txid}` by status. */
export const transactionShapes = {
  seen: { ...unmined, competingTxs: nothing, extraInfo: empty, txStatus: is('SEEN_ON_NETWORK') },
  orphan: { ...unmined, competingTxs: nothing, extraInfo: empty, txStatus: is('SEEN_IN_ORPHAN_MEMPOOL') },
  doubleSpend: { ...unmined, competingTxs: txids, extraInfo: empty, txStatus: is('DOUBLE_SPEND_ATTEMPTED') },
  rejected: { ...unmined, competingTxs: txids, extraInfo: is('double spend attempted'), txStatus: is('REJECTED') },
  mined: { ...mined, competingTxs: nothing, extraInfo: empty, txStatus: is('MINED') },
  stale: { ...mined, competingTxs: nothing, extraInfo: empty, txStatus: is('MINED_IN_STALE_BLOCK') },
} as const satisfies Record<string, Shape>;

/** `POST /v1/tx` returns two more fields than GET. */
export const postShape = (shape: Shape): Shape => ({ ...shape, ...posted });

/** A callback has GET's fields; competitors only if there are any. */
export const callbackShape = (shape: Shape, extraInfo?: string): Shape => {
  const fields = Object.entries(shape).filter(([name, test]) => name !== 'competingTxs' || test !== nothing);
  return { ...Object.fromEntries(fields), ...(extraInfo === undefined ? {} : { extraInfo: is(extraInfo) }) };
};

/** A rejection as a problem document. */
export const problemShape = (status: number, extraInfo: RegExp, hasTxid: boolean): Shape => ({
  detail: text,
  extraInfo: (value) => text(value) && extraInfo.test(value),
  instance: nothing,
  status: is(status),
  title: text,
  txid: hasTxid ? hash : nothing,
  type: is(`https://bitcoin-sv.github.io/arc/#/errors?id=_${status}`),
});

/** A rejection by the API's description. */
export const messageShape = (message: RegExp): Shape => ({
  message: (value) => text(value) && message.test(value),
});

export const policyShape: Shape = {
  policy: (value) =>
    JSON.stringify(value) ===
    JSON.stringify({
      maxscriptsizepolicy: 500000,
      maxtxsigopscountspolicy: 4294967295,
      maxtxsizepolicy: 10000000,
      miningFee: { bytes: 1000, satoshis: 1 },
      standardFormatSupported: true,
    }),
  timestamp: time,
};

export const healthShape: Shape = { healthy: is(true), reason: nothing, version: text };

/** Returns the differences between a value and a shape, one line per field. */
export function misfits(value: unknown, shape: Shape): string[] {
  const fields = (value ?? {}) as Record<string, unknown>;
  const extra = Object.keys(fields).filter((name) => !Object.hasOwn(shape, name));
  const wrong = Object.entries(shape).filter(([name, test]) => !Object.hasOwn(fields, name) || !test(fields[name]));
  return [
    ...extra.map((name) => `${name} should not be there`),
    ...wrong.map(([name]) => `${name} must not be ${JSON.stringify(fields[name])}`),
  ];
}
