// The verifier: proofs by hash, by raw values and by batch. Reads what chain-anchor has confirmed and writes nothing but the number
// of leaves that were proven before they were counted.
import { fromJson, type JsonObject } from '@bufbuild/protobuf';
import { StructSchema, timestampFromDate } from '@bufbuild/protobuf/wkt';
import { AnchoringPolicy_Mode } from '@kellet/proto/es/kellet/v1/common_pb.ts';
import { ProofBundleSchema, VerifierService } from '@kellet/proto/es/kellet/v1/verifier_pb.ts';
import {
  canonicalPayload,
  equalBytes,
  leafHash,
  MalformedError,
  MAXIMUM_BUNDLE_HEADERS,
  type MerkleStep,
  PROOF_BUNDLE_SCHEMA,
  toHex,
} from '@kellet/verify';
import { storedHeaders, storedTip } from '../chain-anchor/headers/header-chain.ts';
import type { Platform, ServiceModule } from '../config/module.ts';
import { findDevice } from '../device-registry/devices/devices.ts';
import { devicesInGroups } from '../device-registry/devices/group-members.ts';
import { FairSlots } from '../platform/concurrency/fair-slots.ts';
import {
  failedPrecondition,
  invalidArgument,
  KelletError,
  notFound,
  permissionDenied,
  unavailable,
} from '../platform/errors.ts';
import { idField } from '../platform/requests/fields.ts';
import type { CallContext, Implementation } from '../platform/rpc.ts';
import { isLimited, visibilityOf } from '../platform/visibility.ts';
import type { ColdFiles } from '../telemetry/cold/cold-files.ts';
import { openColdStorage } from '../telemetry/cold/cold-storage.ts';
import { countLeaves, storedLeafCount } from '../telemetry/leaves/leaf-count.ts';
import { leavesOfDevice } from '../telemetry/leaves/leaf-store.ts';
import { parseTimestamp } from '../telemetry/points/timestamp.ts';
import { findPointByHash } from '../telemetry/read/point-lookup.ts';
import { buildBundle } from './bundle.ts';
import { beefOf, createProver, holds, type LeafProof, proveLeaves, type ProvenBatch, splitLeaves } from './proof.ts';
import {
  allLeaves,
  findLeaf,
  findProvenBatch,
  firstLeaves,
  type FoundLeaf,
  type LeafPages,
  leavesWithDevices,
  pageOfLeaves,
  provenLeaves,
} from './proof-store.ts';
import { rolloutProof } from './rollout-proof.ts';

/** A page of leaves, and the number of all. */
interface Page {
  readonly leaves: LeafPages<FoundLeaf>;
  readonly total: number;
}

const defaultLimit = 50;
const maximumLimit = 500;
/** Each leaf of a page can be in another batch, whose tree has to be built: half a second of work. */
const waitMilliseconds = 10_000;

/** The same error for a pending and a nonexistent hash, so that callers cannot tell them apart. */
const noProof = () =>
  new KelletError('NOT_FOUND', 'no blockchain proof was found for this data hash; it may be pending or nonexistent');

/** Creates the service. */
export function createVerifier(platform: Platform, cold: ColdFiles = openColdStorage(platform).files): ServiceModule {
  const { database, paging } = platform;
  /** Pages of proofs are made two at a time, one of a tenant. */
  const turns = new FairSlots({
    ...{ total: 2, perOwner: 1, waitingPerOwner: 100 },
    refusal: () => unavailable('too many proofs are being made: try again'),
  });
  /** Single proofs hold a batch while they wait for connections. */
  const singleTurns = new FairSlots({
    ...{ total: 8, perOwner: 4, waitingPerOwner: 1000 },
    refusal: () => unavailable('too many proofs are being made: try again'),
  });
  const alone = <T>({ tenantId, signal }: CallContext, make: () => Promise<T>): Promise<T> =>
    singleTurns.run(tenantId, make, { milliseconds: waitMilliseconds, signal });
  const inTurn = <T>({ tenantId, signal }: CallContext, make: () => Promise<T>): Promise<T> =>
    turns.run(tenantId, make, { milliseconds: waitMilliseconds, signal });

  /**
   * Returns the leaf if it has a proof and the caller may see it: a device key sees only its own device's, a limited
   * user only those of the devices that it reaches. Throws NOT_FOUND otherwise.
   */
  const lookUp = async (hash: Uint8Array, context: CallContext): Promise<FoundLeaf> => {
    const { caller, tenantId } = context;
    const leaf = await database.read(tenantId, (tx) => findLeaf(tx, tenantId, hash));
    if (!leaf) throw noProof();
    const visibility = visibilityOf(caller, 'verify:read');
    if (isLimited(visibility)) {
      const { customerId, deviceGroupIds } = visibility;
      const { deviceId } = leaf;
      // Not every leaf is known to be of a device.
      if (deviceId === '') throw noProof();
      const isVisible = await database.read(tenantId, async (tx) => {
        const device = await findDevice(tx, tenantId, deviceId);
        if (!device || (customerId !== null && device.customer_id !== customerId)) return false;
        return deviceGroupIds === null || (await devicesInGroups(tx, tenantId, [deviceId], deviceGroupIds)).size > 0;
      });
      if (!isVisible) throw noProof();
    }
    if (caller.kind === 'device' && leaf.deviceId !== caller.deviceId) {
      throw permissionDenied('a device key may only verify the hashes of its own device');
    }
    return leaf;
  };

  const bundleOf = async (tenantId: string, { batch, deviceId }: FoundLeaf, proof: LeafProof) => {
    const { batchId, openedAt, sealedAt } = batch;
    const place = { deviceId, batchId, dataHash: proof.dataHash, openedAt, sealedAt };
    const point = await findPointByHash({ database, cold }, tenantId, place);
    if (!point) throw failedPrecondition('the values of this point are no longer retained; only its proof is');
    const [headers, tip] = await database.read(tenantId, (tx) =>
      Promise.all([storedHeaders(tx, batch.blockHeight, MAXIMUM_BUNDLE_HEADERS), storedTip(tx)]),
    );
    if (headers[0]?.blockHash !== batch.blockHash || tip === undefined) {
      throw unavailable('the chain is being reorganised: try again');
    }
    return buildBundle({ tenantId, deviceId, batch, proof, point, headers, tip });
  };

  /** Returns a page of all proven leaves of a tenant, and their number. */
  const pageOfTenant = async (tenantId: string, offset: number, limit: number): Promise<Page> => {
    const stored = await database.tenant(tenantId, (tx) => storedLeafCount(tx, tenantId));
    const total = stored ?? (await database.system((tx) => countLeaves(tx, tenantId)));
    const leaves = await database.tenant(tenantId, async (tx) => {
      const places = offset >= total ? [] : await pageOfLeaves(tx, tenantId, offset, limit);
      return firstLeaves(tx, tenantId, places, leavesWithDevices);
    });
    return { leaves, total };
  };

  /** Returns a page of the proven leaves of a device, and their number. */
  const pageOfDevice = (tenantId: string, deviceId: string, offset: number, limit: number): Promise<Page> =>
    // Leaves that are packed between its statements would be counted twice.
    database.tenantSnapshot(tenantId, async (tx) => {
      const { leaves: places, total } = await leavesOfDevice(tx, tenantId, deviceId, { offset, limit });
      // A deleted device keeps its proofs; a device without proofs must exist.
      if (total === 0 && !(await findDevice(tx, tenantId, deviceId))) throw notFound('device_id');
      const leaves = await firstLeaves(tx, tenantId, places, async (...from) =>
        (await provenLeaves(...from)).map((leaf) => ({ ...leaf, deviceId })),
      );
      return { leaves, total };
    });

  const handlers: Implementation<typeof VerifierService> = {
    async verifyHash(request, context) {
      if (!/^[0-9a-f]{64}$/i.test(request.dataHashHex)) {
        throw invalidArgument('data_hash_hex must be 64 hexadecimal digits');
      }
      return alone(context, async () => {
        const leaf = await lookUp(Buffer.from(request.dataHashHex, 'hex'), context);
        const proof = createProver(leaf.batch)(leaf.index);
        const response = toProof(context.tenantId, leaf, proof);
        if (!request.includeBundle) return response;
        const bundle = await bundleOf(context.tenantId, leaf, proof);
        return { ...response, bundle: fromJson(ProofBundleSchema, bundle as unknown as JsonObject) };
      });
    },

    async verifyRaw(request, context) {
      const deviceId = idField('device_id', request.deviceId);
      if (context.caller.kind === 'device' && context.caller.deviceId !== deviceId) {
        throw permissionDenied('a device key may only verify the points of its own device');
      }
      const hash = rawHash(context.tenantId, deviceId, request);
      return alone(context, async () => {
        const leaf = await lookUp(hash, context);
        const proof = createProver(leaf.batch)(leaf.index);
        const {
          batchId,
          dataHash,
          merklePath,
          merkleRoot,
          txid,
          beefHex,
          blockHeight,
          blockHash,
          confirmedAt,
          leafIndex,
          count,
          anchorMode,
        } = toProof(context.tenantId, leaf, proof);
        return {
          verified: equalBytes(proof.dataHash, hash) && holds(leaf.batch, proof),
          ...{ batchId, dataHash, merklePath, merkleRoot, txid, beefHex, blockHeight, blockHash, confirmedAt },
          ...{ leafIndex, count, anchorMode },
        };
      });
    },

    async getBatchProof(request, context) {
      const { tenantId } = context;
      const batchId = idField('batch_id', request.batchId);
      const scope = [tenantId, 'verify/batch', batchId];
      const page = paging.open<number>(request, scope);
      return alone(context, async () => {
        const batch = await database.read(tenantId, (tx) => findProvenBatch(tx, tenantId, batchId));
        if (!batch) throw notFound('batch_id');
        const first = page.after ?? 0;
        const leaves = splitLeaves(batch.leaves).map((hash, index) => ({ hash, index }));
        const cut = paging.close(leaves.slice(first, first + page.size + 1), page, scope, ({ index }) => index + 1);
        return {
          ...commonFields(batch),
          leaves: cut.rows.map(({ hash }) => toHex(hash)),
          nextPageToken: cut.nextPageToken,
          segments: batch.segments.map(({ deviceId, previousHead, firstLeaf, leafCount }) => ({
            deviceId,
            previousHead: toHex(previousHead),
            firstLeaf,
            leafCount,
          })),
        };
      });
    },

    getRolloutProof: (request, context) =>
      inTurn(context, () => rolloutProof({ database, paging }, request, context.tenantId)),

    async listProofs(request, context) {
      const { tenantId } = context;
      const { limit = 0, offset } = request;
      if (limit < 0) throw invalidArgument('limit must not be negative');
      if (offset < 0) throw invalidArgument('offset must not be negative');
      const size = Math.min(limit === 0 ? defaultLimit : limit, maximumLimit);
      const device = request.deviceId === '' ? undefined : idField('device_id', request.deviceId);
      return inTurn(context, async () => {
        const page = await (device === undefined
          ? pageOfTenant(tenantId, offset, size)
          : pageOfDevice(tenantId, device, offset, size));
        const proofs: ReturnType<typeof toProof>[] = [];
        for await (const leaves of allLeaves(database, tenantId, page.leaves)) {
          proofs.push(...(await proveLeaves(leaves, (leaf, proof) => toProof(tenantId, leaf, proof))));
        }
        return { proofs, total: page.total };
      });
    },

    getBundleSchema: () => Promise.resolve(fromJson(StructSchema, PROOF_BUNDLE_SCHEMA as JsonObject)),
  };

  return { register: (registry) => registry.register(VerifierService, handlers) };
}

/** Returns the leaf hash of submitted values in the caller's tenant. */
function rawHash(
  tenantId: string,
  deviceId: string,
  values: {
    timestamp: string;
    numericValues: Readonly<Record<string, number>>;
    stringValues: Readonly<Record<string, string>>;
  },
): Uint8Array {
  const time = parseTimestamp(values.timestamp);
  if (!time || time.seconds < 0) throw invalidArgument('timestamp must be RFC 3339, from 1970 on');
  try {
    const payload = canonicalPayload(values.numericValues, values.stringValues);
    return leafHash({ tenantId, deviceId, timestampSeconds: time.seconds, payload });
  } catch (error) {
    if (error instanceof MalformedError) throw invalidArgument(error.message);
    throw error;
  }
}

const steps = (path: readonly MerkleStep[]) => path.map(({ hash, isRight }) => ({ hash: toHex(hash), isRight }));

/** Returns the fields that every proof shares about its batch. */
function commonFields(batch: ProvenBatch) {
  return {
    batchId: batch.batchId,
    merkleRoot: toHex(batch.merkleRoot),
    txid: batch.txid,
    beefHex: toHex(beefOf(batch)),
    blockHeight: batch.blockHeight,
    blockHash: batch.blockHash,
    confirmedAt: timestampFromDate(batch.confirmedAt),
    count: batch.count,
    anchorMode: AnchoringPolicy_Mode[batch.mode],
  };
}

/** Returns the proof record of a leaf. */
function toProof(tenantId: string, leaf: FoundLeaf, proof: LeafProof) {
  return {
    ...commonFields(leaf.batch),
    dataHash: toHex(proof.dataHash),
    merklePath: steps(proof.path),
    tenantId,
    deviceId: leaf.deviceId,
    leafIndex: proof.leafIndex,
  };
}
