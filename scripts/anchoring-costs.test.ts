// Computes again what docs/anchoring-costs.md says about the settings of tenants.
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { expect } from 'chai';
import {
  anchorFee,
  COMMITMENT_BYTES,
  floorRate,
  PAYMENT_BYTES,
  transactionBytes,
} from '../apiserver/src/chain-anchor/processor/fees.ts';
import { batchSecondsFor } from '../apiserver/src/policies/batch-seconds.ts';

const page = readFileSync(path.join(path.dirname(import.meta.dirname), 'docs/anchoring-costs.md'), 'utf8');
const defaultBatchSeconds = 30;
const secondsOfDay = 86_400;
const blockMinutes = 10;

/** Returns the cells of the rows of the table that begins with this heading. */
function rowsOf(heading: string): string[][] {
  const [, rows = ''] = page.split(`| ${heading} |`)[1]!.split(/^\|(?:-+\|)+\n/m);
  return rows
    .split('\n\n', 1)[0]!
    .split('\n')
    .map((row) => row.split(' | ').map((cell) => cell.replace(/^\| | \|$/g, '')));
}

const numberOf = (text: string): number => Number(text.replaceAll(',', ''));
/** Reads `30 s`, `5 min` or `an hour`. */
function secondsOf(text: string): number {
  const [, digits, unit] = /up to (?:(\d+) (s|min)|an hour)/.exec(text)!;
  return digits === undefined ? 3600 : Number(digits) * (unit === 's' ? 1 : 60);
}

describe('docs/anchoring-costs.md', () => {
  const rows = rowsOf('setting');

  it('has settings of tenants', () => expect(rows).to.have.length.of.at.least(4));

  for (const [setting = '', aDay = '', aYear = '', wait = '', proof = ''] of rows) {
    it(`says what a tenant pays, and how long it waits: ${setting}`, () => {
      const valueOf = (name: string) => Number(new RegExp(`${name}: (\\d+)`).exec(setting)?.[1] ?? 0);
      const [batchSeconds, anchorsPerDay] = [valueOf('batch_seconds'), valueOf('anchors_per_day')];
      const seconds = batchSecondsFor(defaultBatchSeconds, { batchSeconds, anchorsPerDay: 0 });
      if (anchorsPerDay > 0)
        expect(batchSecondsFor(defaultBatchSeconds, { batchSeconds: 0, anchorsPerDay })).to.equal(seconds);
      const satoshis = (secondsOfDay / seconds) * Number(anchorFee(floorRate));
      expect(numberOf(aDay), 'a day').to.equal(satoshis);
      expect(numberOf(aYear), 'a year').to.equal(satoshis * 365);
      expect(secondsOf(wait), 'wait').to.equal(seconds);
      expect(parseInt(proof), 'proof, in minutes').to.equal(Math.round(seconds / 60 / 2 + blockMinutes));
    });
  }

  it('says what a transaction costs', () => {
    const [, bytes, usual, rate, dear] =
      /at most (\d+) bytes .* pays (\d+) satoshi, the least there is; at a rate of (\d+), (\d+) satoshis/.exec(page)!;
    expect(transactionBytes(1, COMMITMENT_BYTES)).to.be.at.most(Number(bytes));
    expect(Number(anchorFee(floorRate))).to.equal(Number(usual));
    expect(Number(anchorFee({ satoshis: Number(rate), bytes: 1000 }))).to.equal(Number(dear));
    expect(Number(/by transactions of (\d+) bytes a coin/.exec(page)![1])).to.equal(PAYMENT_BYTES);
  });
});
