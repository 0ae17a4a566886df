// The proof bundles of all points of a tenant, in the order of their batches and leaves. Memory is bounded, and each step is a short read
// of its own, so that a tenant of any size holds nothing up.
import type { ProofBundle } from '@kellet/verify';
import { type StoredHeader, storedHeaders, storedTip } from '../chain-anchor/headers/header-chain.ts';
import { sleep } from '../platform/clock.ts';
import type { Database } from '../platform/database/database.ts';
import { pagesOf } from '../platform/pages-of.ts';
import type { ColdFiles } from '../telemetry/cold/cold-files.ts';
import { leafHash } from '../telemetry/points/leaf-hashes.ts';
import { type BatchPoint, countOpenPoints, type LeafSpan, pointsOfLeaves } from '../telemetry/read/batch-points.ts';
import { buildBundle } from './bundle.ts';
import { createProver, type ProvenBatch } from './proof.ts';
import { batchesAtOnce, findProvenBatches, pagesOfBatches } from './proof-store.ts';

/** Headers of a bundle, where verify/hash gives up to 144: so many depths are shown, and a bundle takes a few kilobytes. */
const headersOfBundle = 6;

/** Leaves whose points are looked up at once. */
const leavesAtOnce = 50_000;

/** So many at first: the values of all are read, also of those for which there is no memory. */
const leavesAtFirst = 1000;

/** How long a reorganisation may take, and how often to look whether it is over. */
const reorganisationMilliseconds = 600_000;
const retryMilliseconds = 1000;

/** The chain is being reorganised for longer than the bundles wait for it. */
export class ReorganisationError extends Error {}

/** How many points have a bundle, and why the others have none. */
export interface BundleCounts {
  readonly written: number;
  /** Their batch is in no block. */
  readonly pending: number;
  /** Their values are no longer retained. */
  readonly expired: number;
  /** Their stored values do not have their hash. */
  readonly damaged: number;
}

/** What bundles are made from. */
export interface TenantBundlesParts {
  readonly database: Database;
  readonly cold: ColdFiles;
  /** Writes a bundle; resolves when there is room for more. */
  readonly write: (bundle: ProofBundle) => Promise<void>;
  /** Leaves, bytes of payloads and milliseconds, to be small in tests. */
  readonly most?: { readonly leaves?: number; readonly bytes?: number; readonly reorganisation?: number };
}

/** A batch with the blocks from its own on, and the height of the chain. */
interface BatchOnChain {
  readonly batch: ProvenBatch;
  readonly headers: readonly StoredHeader[];
  readonly tip: number;
}

/** Writes the bundles of a tenant's batches. */
export class TenantBundles {
  private readonly parts: TenantBundlesParts;
  private readonly tenantId: string;
  readonly counts = { written: 0, pending: 0, expired: 0, damaged: 0 };
  /** Leaves whose points are looked up next: as many as there was memory for, or more. */
  private leaves: number;

  constructor(parts: TenantBundlesParts, tenantId: string) {
    this.parts = parts;
    this.tenantId = tenantId;
    this.leaves = Math.min(leavesAtFirst, this.mostLeaves);
  }

  private get mostLeaves(): number {
    return this.parts.most?.leaves ?? leavesAtOnce;
  }

  /** Does it once. Throws UnreadableFileError or ReorganisationError. */
  async run(): Promise<BundleCounts> {
    const { database } = this.parts;
    let spans: LeafSpan[] = [];
    for await (const page of pagesOfBatches(database, this.tenantId)) {
      const open = page.filter(({ sealedAt }) => sealedAt === null);
      const openIds = open.map(({ batchId }) => batchId);
      this.counts.pending += await countOpenPoints(database, this.tenantId, openIds);
      for (const { sealedAt, isProven, leaves: end, ...batch } of page) {
        if (sealedAt && isProven) spans.push({ ...batch, sealedAt, first: 0, end });
        else this.counts.pending += end;
      }
      while (leavesIn(spans) >= this.leaves) spans = await this.writeSome(spans);
    }
    while (spans.length > 0) spans = await this.writeSome(spans);
    return this.counts;
  }

  /** Writes the bundles of some leaves, the first ones, and returns the others. */
  private async writeSome(spans: readonly LeafSpan[]): Promise<LeafSpan[]> {
    const { most } = this.parts;
    const [wanted] = splitSpans(spans, this.leaves);
    const points = await pointsOfLeaves(this.parts, this.tenantId, wanted, most?.bytes);
    this.leaves = points.length < leavesIn(wanted) ? points.length : Math.min(2 * this.leaves, this.mostLeaves);
    const [done, rest] = splitSpans(spans, points.length);
    let first = 0;
    const withPoints: { span: LeafSpan; points: readonly (BatchPoint | undefined)[] }[] = [];
    for (const span of done) {
      const own = points.slice(first, (first += span.end - span.first));
      if (own.some((point) => point !== undefined)) withPoints.push({ span, points: own });
      else this.counts.expired += own.length;
    }
    for (const page of pagesOf(withPoints, batchesAtOnce)) {
      const batches = await this.batchesOnChain(page.map(({ span }) => span.batchId));
      for (const { span, points: own } of page) {
        const batch = batches.get(span.batchId);
        // Its block is not on the chain any more.
        if (!batch) this.counts.pending += own.length;
        else await this.writeSpan(batch, span, own);
      }
    }
    return rest;
  }

  private async writeSpan(
    { batch, headers, tip }: BatchOnChain,
    { first }: LeafSpan,
    points: readonly (BatchPoint | undefined)[],
  ): Promise<void> {
    const { tenantId, counts } = this;
    const prove = createProver(batch);
    for (const [place, point] of points.entries()) {
      if (!point) {
        counts.expired += 1;
        continue;
      }
      const proof = prove(first + place);
      const { deviceId, payload } = point;
      const hash = leafHash(tenantId, deviceId, Number(point.time / 1_000_000_000n), payload);
      if (hash !== Buffer.from(proof.dataHash).toString('latin1')) {
        counts.damaged += 1;
        continue;
      }
      await this.parts.write(buildBundle({ tenantId, deviceId, batch, proof, point, headers, tip }));
      counts.written += 1;
    }
  }

  /** Returns those of the batches that are proven, on one chain: reads them again while it is being reorganised. */
  private async batchesOnChain(batchIds: readonly string[]): Promise<Map<string, BatchOnChain>> {
    const { database, most } = this.parts;
    const deadline = Date.now() + (most?.reorganisation ?? reorganisationMilliseconds);
    for (; ; await sleep(retryMilliseconds)) {
      const batches = await database.read(this.tenantId, (tx) => findProvenBatches(tx, this.tenantId, batchIds));
      const heights = [...new Set([...batches.values()].map(({ blockHeight }) => blockHeight))];
      // The tip last: with one from before the headers, blocks that arrive in between would be shown beyond the stated depth.
      const [runs, tip] = await database.read(this.tenantId, (tx) =>
        Promise.all([Promise.all(heights.map((height) => storedHeaders(tx, height, headersOfBundle))), storedTip(tx)]),
      );
      const headersAt = new Map(heights.map((height, index) => [height, runs[index]!]));
      const onChain = [...batches.values()].flatMap((batch) => {
        const headers = headersAt.get(batch.blockHeight)!;
        return tip !== undefined && headers[0]?.blockHash === batch.blockHash ? [{ batch, headers, tip }] : [];
      });
      if (onChain.length === batches.size) return new Map(onChain.map((found) => [found.batch.batchId, found]));
      if (Date.now() > deadline) throw new ReorganisationError('the chain is being reorganised: try again');
    }
  }
}

const leavesIn = (spans: readonly LeafSpan[]): number => spans.reduce((sum, { first, end }) => sum + end - first, 0);

/** Returns the first leaves of spans, and the others. */
function splitSpans(spans: readonly LeafSpan[], leaves: number): [LeafSpan[], LeafSpan[]] {
  const taken: LeafSpan[] = [];
  const rest: LeafSpan[] = [];
  let left = leaves;
  for (const span of spans) {
    const end = Math.min(span.end, span.first + left);
    left -= end - span.first;
    if (end > span.first) taken.push({ ...span, end });
    if (end < span.end) rest.push({ ...span, first: end });
  }
  return [taken, rest];
}
