// Memory shared by all requests and responses of the public ports, so that many connections together cannot exhaust the
// process.
import type { ServerResponse } from 'node:http';
import { addressBlock } from '../../platform/addresses/address-block.ts';
import { type Hold, MemoryBudget } from './memory-budget.ts';

const mebibyte = 1024 * 1024;

/** Maximum request size without a credential: a sign-in, or a claim with its certificate request. */
export const strangerBodyBytes = 64 * 1024;
/** Time for such a request to arrive. */
const strangerMilliseconds = 10_000;

/** Maximum message size of health and reflection calls: a service, file or type name. */
export const probeMessageBytes = 4 * 1024;
/** Memory that such a call is counted as, with its stream and a response waiting to be read. */
const probeBytes = 64 * 1024;

/** Limits of a body. */
export interface BodyBounds {
  /** Maximum bytes of the whole body. */
  readonly limit: number;
  /** Memory budget for a body that does not arrive at once. */
  readonly budget: MemoryBudget;
  /** Owner of the bytes in the budget. */
  readonly owner: string;
  /** Time for the whole body; by default the limits of the connection apply. */
  readonly milliseconds?: number;
}

/** Memory of all requests and responses. */
export class BodyMemory {
  /** Requests without a credential, including the processor's callbacks. */
  private readonly strangers = new MemoryBudget({ total: 16 * mebibyte, perOwner: 4 * mebibyte });
  /** Running health and reflection calls, which need no credential: 32 per address, 256 in all. */
  private readonly probes = new MemoryBudget({ total: 256 * probeBytes, perOwner: 32 * probeBytes });
  /** Requests with a credential, by tenant. */
  private readonly callers = new MemoryBudget({ total: 128 * mebibyte, perOwner: 64 * mebibyte });
  /** Responses waiting to be read, by tenant. */
  private readonly replies = new MemoryBudget({ total: 128 * mebibyte, perOwner: 24 * mebibyte });

  /** Returns the bounds of a body whose sender has no credential, or has it in the body. */
  ofStranger(address: string, limit: number = strangerBodyBytes): BodyBounds {
    return { limit, budget: this.strangers, owner: addressBlock(address), milliseconds: strangerMilliseconds };
  }

  /** Returns the bounds of a body whose sender is known. */
  ofCaller(tenantId: string, limit: number): BodyBounds {
    return { limit, budget: this.callers, owner: tenantId };
  }

  /** Reserves the maximum message size for a gRPC caller without a credential, until the message has arrived. */
  holdStranger(address: string, evict: () => void): Hold {
    const hold = this.strangers.hold(addressBlock(address), evict);
    hold.set(strangerBodyBytes);
    return hold;
  }

  /** Reserves memory for an unfinished gRPC message whose sender is known. */
  holdCaller(tenantId: string, evict: () => void): Hold {
    return this.callers.hold(tenantId, evict);
  }

  /** Reserves the memory of a health or reflection call until it is over. The oldest calls are evicted first. */
  holdProbe(address: string, evict: () => void): Hold {
    const hold = this.probes.hold(addressBlock(address), evict);
    hold.set(probeBytes);
    return hold;
  }

  /**
   * Reserves a response's memory until it has been read. The slowest readers are disconnected when memory runs short.
   */
  holdResponse(tenantId: string, response: ServerResponse, bytes: number): void {
    const hold = this.holdReplies(tenantId, () => response.destroy());
    hold.set(bytes);
    response.once('close', () => hold.release());
  }

  /** Reserves memory for what a client has not read; `evict` disconnects it. */
  holdReplies(tenantId: string, evict: () => void): Hold {
    return this.replies.hold(tenantId, evict);
  }
}
