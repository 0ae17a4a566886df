// Memory shared by all requests and responses of the public ports, so that many connections together cannot exhaust the
// process.
import type { ServerResponse } from 'node:http';
import { addressBlock } from '../../platform/address-block.ts';
import { MemoryBudget, type Hold } from './memory-budget.ts';
import type { BodyBounds } from './rest-call.ts';

const mebibyte = 1024 * 1024;

/** Maximum request size without a credential: a sign-in, or a claim with its certificate request. */
export const strangerBodyBytes = 64 * 1024;
/** Time for such a request to arrive. */
const strangerMilliseconds = 10_000;

/** Memory of all requests and responses. */
export class BodyMemory {
  /** Requests without a credential, including the processor's callbacks. */
  private readonly strangers = new MemoryBudget({ total: 16 * mebibyte, perOwner: 4 * mebibyte });
  /** Requests with a credential, by tenant. */
  private readonly callers = new MemoryBudget({ total: 128 * mebibyte, perOwner: 64 * mebibyte });
  /** Responses waiting to be read, by tenant. */
  private readonly answers = new MemoryBudget({ total: 128 * mebibyte, perOwner: 24 * mebibyte });

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

  /**
   * Reserves a response's memory until it has been read. The slowest readers are disconnected when memory runs short.
   */
  holdAnswer(tenantId: string, response: ServerResponse, bytes: number): void {
    const hold = this.answers.hold(tenantId, () => response.destroy());
    hold.set(bytes);
    response.once('close', () => hold.release());
  }
}
