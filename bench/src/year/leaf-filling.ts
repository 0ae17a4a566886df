// The index of leaves of a populated installation: proven leaves are packed, as the code packs them but in fewer and larger steps, and
// the others wait.
import { newId } from '../../../apiserver/src/platform/ids.ts';
import type { Block } from '../../../apiserver/src/telemetry/leaves/leaf-blocks.ts';
import { packRun } from '../../../apiserver/src/telemetry/leaves/pack-run.ts';
import { BinaryRows } from './binary-rows.ts';
import type { MadeBlock } from './made-block.ts';
import type { HeadPoint, Send } from './segment.ts';

const waitingColumns = ['tenant_id', 'batch_id', 'is_proven', 'devices'];
const runColumns = ['tenant_id', 'run_id', 'leaves', 'batches', 'devices', 'least_batch', 'greatest_batch'];
const blockColumns = ['tenant_id', 'run_id', 'part', 'first', 'first_id', 'data'];

/** Leaves of a tenant that are packed at once. */
const mostLeaves = 2 ** 20;
/** A tenant with fewer batches has none of them packed. */
const leastBatches = 64;

/** Proven leaves of a tenant that are not packed yet. */
class TenantLeaves {
  batches = 0;
  leaves = 0;
  private ids = Buffer.allocUnsafe(16 * leastBatches);
  private ends = new Uint32Array(leastBatches);
  private hashes = Buffer.allocUnsafe(32 * leastBatches);
  private devices = Buffer.allocUnsafe(16 * leastBatches);

  /** Adds a batch of a block, all of whose leaves are of one device. */
  add(block: MadeBlock, index: number, device: Buffer): void {
    const count = block.counts[index]!;
    const leavesAt = block.leavesAt[index]!;
    if (this.batches === this.ends.length) {
      this.ids = enlarged(this.ids, this.batches * 32);
      const ends = new Uint32Array(this.batches * 2);
      ends.set(this.ends);
      this.ends = ends;
    }
    while ((this.leaves + count) * 16 > this.devices.length) {
      this.hashes = enlarged(this.hashes, this.hashes.length * 2);
      this.devices = enlarged(this.devices, this.devices.length * 2);
    }
    block.ids.copy(this.ids, this.batches * 16, index * 16, index * 16 + 16);
    block.leaves.copy(this.hashes, this.leaves * 32, leavesAt, leavesAt + count * 32);
    for (let leaf = 0; leaf < count; leaf += 1) device.copy(this.devices, (this.leaves + leaf) * 16);
    this.leaves += count;
    this.ends[this.batches] = this.leaves;
    this.batches += 1;
  }

  /** Calls back with each batch: its id and the hashes and the devices of its leaves. */
  forEach(use: (id: Buffer, hashes: Buffer, devices: Buffer) => void): void {
    for (let batch = 0, start = 0; batch < this.batches; batch += 1) {
      const end = this.ends[batch]!;
      use(
        this.ids.subarray(batch * 16, batch * 16 + 16),
        this.hashes.subarray(start * 32, end * 32),
        this.devices.subarray(start * 16, end * 16),
      );
      start = end;
    }
  }
}

function enlarged(from: Buffer, size: number): Buffer<ArrayBuffer> {
  const to = Buffer.allocUnsafe(size);
  from.copy(to);
  return to;
}

/** Fills the tables of the index. */
export class LeafFilling {
  private readonly send: Send;
  private readonly waiting: BinaryRows;
  private readonly runs: BinaryRows;
  private readonly blocks: BinaryRows;
  private readonly tenants = new Map<string, TenantLeaves>();

  constructor(send: Send, copyBytes: number) {
    this.send = send;
    this.waiting = new BinaryRows(copyBytes);
    this.runs = new BinaryRows(copyBytes);
    this.blocks = new BinaryRows(copyBytes);
  }

  /** Adds the leaves of a batch of a block. Returns a promise if rows had to be sent. */
  add(block: MadeBlock, index: number, head: HeadPoint | undefined, isProven: boolean): Promise<void> | undefined {
    const tenantId = block.tenantIds[index]!;
    const device = head?.bytes ?? block.devices[index]!.bytes;
    if (isProven) {
      let own = this.tenants.get(tenantId);
      if (!own) this.tenants.set(tenantId, (own = new TenantLeaves()));
      own.add(block, index, device);
      if (own.leaves < mostLeaves) return undefined;
      this.pack(tenantId, own);
    } else {
      const id = block.ids.subarray(index * 16, index * 16 + 16);
      const devices = Buffer.concat(Array.from({ length: block.counts[index]! }, () => device));
      this.addWaiting(tenantId, id, isProven, devices);
    }
    return this.waiting.isFull || this.blocks.isFull ? this.flush() : undefined;
  }

  /** Packs the leaves of tenants that have enough of them. */
  async packTenants(): Promise<void> {
    for (const [tenantId, own] of this.tenants) {
      if (own.batches < leastBatches) continue;
      this.pack(tenantId, own);
      if (this.blocks.isFull) await this.flush();
    }
  }

  /** Sends what is left. */
  async end(): Promise<void> {
    await this.packTenants();
    for (const [tenantId, own] of this.tenants)
      own.forEach((id, _, devices) => this.addWaiting(tenantId, id, true, devices));
    this.tenants.clear();
    await this.flush();
  }

  private pack(tenantId: string, own: TenantLeaves): void {
    this.tenants.delete(tenantId);
    const batches: { id: Buffer; hashes: Buffer; devices: Buffer }[] = [];
    own.forEach((id, hashes, devices) => batches.push({ id, hashes, devices }));
    const { facts, blocks } = packRun(batches);
    const runId = Buffer.from(newId().replaceAll('-', ''), 'hex');
    const rows = this.runs;
    rows.row(runColumns.length);
    rows.ascii(tenantId);
    rows.bytes(runId);
    rows.int4(facts.leaves);
    rows.int4(facts.batches);
    rows.int4(facts.devices);
    rows.bytes(facts.leastBatch);
    rows.bytes(facts.greatestBatch);
    for (const block of blocks) this.addBlock(tenantId, runId, block);
  }

  private addBlock(tenantId: string, runId: Buffer, { part, first, firstId, data }: Block): void {
    const rows = this.blocks;
    rows.row(blockColumns.length);
    rows.ascii(tenantId);
    rows.bytes(runId);
    rows.int2(part);
    rows.int8(first);
    if (firstId) rows.bytes(firstId);
    else rows.null();
    rows.bytes(data);
  }

  private addWaiting(tenantId: string, id: Buffer, isProven: boolean, devices: Buffer): void {
    const rows = this.waiting;
    rows.row(waitingColumns.length);
    rows.ascii(tenantId);
    rows.bytes(id);
    rows.boolean(isProven);
    rows.bytes(devices);
  }

  private async flush(): Promise<void> {
    if (!this.waiting.isEmpty) await this.send('unpacked_leaves', waitingColumns, this.waiting.take());
    if (!this.runs.isEmpty) await this.send('leaf_runs', runColumns, this.runs.take());
    if (!this.blocks.isEmpty) await this.send('leaf_blocks', blockColumns, this.blocks.take());
  }
}
