// Verifies the proof of a whole rollout page by page, in memory that grows with its batches and blocks, not with what its results
// say. Whether every result is there cannot be proven: a service may leave some out, but not change or invent any.
import { bumpRootFor, parseBump } from './bump.ts';
import { checkCommitment, checkLeaf, checkPath, checkTransactionId } from './bundle-steps.ts';
import { equalBytes, fromDisplayHex, fromHex, toHex } from './bytes.ts';
import { MalformedError, messageOf, RefutedError } from './errors.ts';
import { HeaderRun } from './header-run.ts';
import { parseJsonText } from './json-text.ts';
import { canonicalJson, parsePayload } from './leaf-hash.ts';
import type { Pin } from './pins.ts';
import { type AnchoredBatch, readRolloutPage, type RolloutProofPage, type RolloutResult } from './rollout-schema.ts';
import { sha256 } from './sha256.ts';

/** What is known about one result. Its verdict holds once a trusted block is on the chain, which only the whole proof shows. */
export interface ResultVerdict {
  /** anchored: in a block of the proof's chain. pending: not anchored yet. refuted: something is untrue. */
  verdict: 'anchored' | 'pending' | 'refuted';
  device_id: string;
  /** Unix seconds. */
  timestamp: number;
  /** As the device reported: `successful`, `failure` or `rolled_back`; empty if the payload does not say. */
  result: string;
  reported_version: string;
  package_version: string;
  /** Of the block; absent unless anchored. */
  block_height?: number;
  /** Why it is refuted. */
  reason?: string;
}

/** The verdict on the whole proof; `incomplete`: results are pending, and all others hold. */
export interface RolloutVerdict {
  verdict: 'proven' | 'mined' | 'incomplete' | 'refuted' | 'malformed';
  /** Why it is not proven; absent if it is. */
  reason?: string;
  tenant_id?: string;
  rollout_id?: string;
  /** Absent unless an anchored result says that it is about this package. */
  package_id?: string;
  counts: { results: number; anchored: number; pending: number; refuted: number };
  /** Anchored results by what they say. */
  anchored: Record<string, number>;
  /** Devices with an anchored result. */
  devices: number;
  /** Batches with an anchored result. */
  batches: number;
  /** The blocks of the proof's chain; absent if there are none. */
  first_block?: number;
  last_block?: number;
  /** Expected number of hashes for these blocks, in decimal. */
  work?: string;
}

/** A verified batch, or why it is refuted. */
type Batch = Pick<AnchoredBatch, 'anchor_mode' | 'count' | 'merkle_root' | 'block_height'> & {
  /** Hash of all that the first page with it says about it. */
  digest: string;
  hasResults: boolean;
  refusal?: string;
};

/** Maximum length of a reason in characters. */
const MAXIMUM_REASON = 1000;

/** Returns the begin of a long text, as a copy: a part of a text would keep all of it in memory. */
const shorten = (text: string): string =>
  text.length > MAXIMUM_REASON ? `${[...text.slice(0, MAXIMUM_REASON)].join('')}…` : text;

const digestOf = (text: string): string => toHex(sha256(new TextEncoder().encode(text)));
/** Returns a short text for each id, so that ids of any length do not fill the memory. */
const keyOf = (id: string): string => (id.length < 64 ? id : digestOf(id));

/** Verifies pages in order. */
export class RolloutVerifier {
  private readonly batches = new Map<string, Batch>();
  private readonly seen = new Set<string>();
  private readonly devices = new Set<string>();
  private readonly counts = { results: 0, anchored: 0, pending: 0, refuted: 0 };
  private readonly anchored = new Map<string, number>();
  private readonly headers = new HeaderRun();
  /** Height of the latest block with a batch. */
  private highest = 0;
  private first: RolloutProofPage | undefined;
  private last: string | undefined;
  private malformed: string | undefined;
  private refuted: string | undefined;
  /** Whether an anchored result is about the package of the first page, which nothing else proves. */
  private isOfPackage = false;

  /** The heights of the blocks so far; undefined before there are any. */
  get span(): { first: number; last: number } | undefined {
    return this.headers.span;
  }

  /** Verifies the next page, given as JSON text, and returns its results. Returns none once the proof cannot hold. */
  add(text: string): ResultVerdict[] {
    if (this.malformed !== undefined || this.refuted !== undefined) return [];
    let page: RolloutProofPage;
    try {
      if (this.last === '') throw new MalformedError('text follows the last page');
      page = readRolloutPage(parseJsonText(text));
      const { first = page } = this;
      if (page.tenant_id !== first.tenant_id || page.rollout_id !== first.rollout_id) {
        throw new MalformedError('the pages are of different rollouts');
      }
      if (page.package_id !== first.package_id) throw new MalformedError('the pages are of different packages');
    } catch (error) {
      this.malformed = shorten(messageOf(error));
      return [];
    }
    this.first ??= { ...page, results: [], batches: [], block_header_chain: [] };
    this.last = page.next_page_token;
    try {
      this.headers.add(page.block_header_chain.map(({ height, header }) => ({ height, raw: fromHex(header) })));
      for (const batch of page.batches) this.addBatch(batch);
    } catch (error) {
      this.refuted = shorten(reasonOf(error));
      return [];
    }
    return page.results.map((result) => this.judge(page, result));
  }

  /** Returns the verdict on the proof, given the blocks that the reader trusts. To be called after the last page. */
  finish(pins: readonly Pin[]): RolloutVerdict {
    const { span } = this.headers;
    const batches = [...this.batches.values()];
    const summary = {
      ...(this.first && {
        tenant_id: this.first.tenant_id,
        rollout_id: this.first.rollout_id,
        ...(this.isOfPackage && { package_id: this.first.package_id }),
      }),
      counts: { ...this.counts },
      anchored: Object.fromEntries(this.anchored),
      devices: this.devices.size,
      batches: batches.filter(({ hasResults }) => hasResults).length,
      ...(span && { first_block: span.first, last_block: span.last, work: this.headers.work.toString() }),
    };
    const is = (verdict: RolloutVerdict['verdict'], reason: string): RolloutVerdict => ({
      verdict,
      reason,
      ...summary,
    });
    if (this.malformed !== undefined) return is('malformed', this.malformed);
    if (this.last === undefined) return is('malformed', 'no page');
    if (this.refuted !== undefined) return is('refuted', this.refuted);
    const { results, pending, refuted } = this.counts;
    if (refuted > 0) return is('refuted', `${refuted} of ${results} results are refuted`);
    // Also one that holds no result, which could be taken for proven.
    const refusal = batches.find((batch) => batch.refusal !== undefined)?.refusal;
    if (refusal !== undefined) return is('refuted', refusal);
    let pin: Pin | undefined;
    try {
      pin = this.headers.findPin(pins, this.highest);
    } catch (error) {
      return is('refuted', `pin: ${shorten(reasonOf(error))}`);
    }
    if (this.last !== '') return is('malformed', 'the last page is missing: the file was cut off');
    if (pending > 0) return is('incomplete', `${pending} of ${results} results are not anchored yet`);
    // Headers alone prove nothing about a rollout.
    if (results === 0) return is('incomplete', 'no device has reported a result');
    if (pin !== undefined) return { verdict: 'proven', ...summary };
    const reason = 'proof of work alone does not identify the chain';
    return is('mined', `no trusted block among the headers from block ${this.highest} on; ${reason}`);
  }

  private addBatch(given: AnchoredBatch): void {
    const { batch_id: id, anchor_mode, count, merkle_root, txid, block_height } = given;
    const digest = digestOf(canonicalJson(given));
    const known = this.batches.get(keyOf(id));
    if (known !== undefined) {
      if (known.digest !== digest) throw new RefutedError(`batch ${id} differs from page to page`);
      return;
    }
    const batch: Batch = { anchor_mode, count, merkle_root, block_height, digest, hasResults: false };
    try {
      const commitment = checkCommitment(given, checkTransactionId(given));
      if (commitment.batchId !== id) throw new RefutedError(`the transaction commits to batch ${commitment.batchId}`);
      const bump = parseBump(fromHex(given.bump_hex));
      if (bump.blockHeight !== block_height) throw new RefutedError(`bump_hex is for block ${bump.blockHeight}`);
      const root = this.headers.merkleRoot(block_height);
      if (root === undefined) throw new RefutedError(`the header of block ${block_height} is missing`);
      if (!equalBytes(bumpRootFor(bump, fromDisplayHex(txid)), root)) {
        throw new RefutedError(`bump_hex does not lead to the Merkle root of block ${block_height}`);
      }
    } catch (error) {
      batch.refusal = shorten(`batch ${id}: ${reasonOf(error)}`);
    }
    this.highest = Math.max(this.highest, block_height);
    this.batches.set(keyOf(id), batch);
  }

  private judge(page: RolloutProofPage, result: RolloutResult): ResultVerdict {
    const inputs = result.canonical_hash_inputs;
    const said = { result: '', reported_version: '', package_version: '' };
    const about = { device_id: inputs.device_id, timestamp: inputs.timestamp };
    this.counts.results += 1;
    try {
      const values = parsePayload(inputs.payload).stringValues;
      const value = (name: string) => values.get(`kellet.ota.${name}`) ?? '';
      said.result = value('result');
      said.reported_version = value('reported_version');
      said.package_version = value('package_version');
      if (inputs.tenant_id !== page.tenant_id) throw new RefutedError(`it is of tenant ${inputs.tenant_id}`);
      if (value('rollout_id') !== page.rollout_id) throw new RefutedError('it is not of this rollout');
      const resultId = value('result_id');
      if (resultId === '' || this.seen.has(keyOf(resultId)))
        throw new RefutedError(`result_id "${resultId}" is not unique`);
      this.seen.add(keyOf(resultId));
      const leaf = checkLeaf(result);
      if (result.batch_id === '') {
        this.counts.pending += 1;
        return { verdict: 'pending', ...about, ...said };
      }
      const batch = this.batches.get(keyOf(result.batch_id));
      if (batch === undefined) throw new RefutedError(`batch ${result.batch_id} is missing`);
      if (batch.refusal !== undefined) throw new RefutedError(batch.refusal);
      checkPath({ ...result, ...batch }, leaf);
      batch.hasResults = true;
      this.counts.anchored += 1;
      const name = shorten(said.result);
      this.anchored.set(name, (this.anchored.get(name) ?? 0) + 1);
      this.devices.add(keyOf(inputs.device_id));
      // Devices that were rolled back report on the package to which they returned.
      this.isOfPackage ||= said.result !== 'rolled_back' && value('package_id') === this.first!.package_id;
      return { verdict: 'anchored', ...about, ...said, block_height: batch.block_height };
    } catch (error) {
      this.counts.refuted += 1;
      return { verdict: 'refuted', ...about, ...said, reason: shorten(reasonOf(error)) };
    }
  }
}

/** Returns the reason of a refusal; rethrows anything else. */
function reasonOf(error: unknown): string {
  if (error instanceof RefutedError || error instanceof MalformedError) return error.message;
  throw error;
}
