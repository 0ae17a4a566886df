// The memory that requests and answers of the public ports may take: shared by all of them, so that no number of connections adds
// up to more than the process has.
import type { ServerResponse } from 'node:http';
import { addressBlock } from '../../platform/address-block.ts';
import { MemoryBudget, type Hold } from './memory-budget.ts';
import type { BodyBounds } from './rest-call.ts';

const mebibyte = 1024 * 1024;

/** The greatest request of a caller without a credential: a sign-in, a claim with its certificate request. */
export const strangerBodyBytes = 64 * 1024;
/** How long such a request may take to arrive. */
const strangerMilliseconds = 10_000;

/** What all requests and answers hold together. */
export class BodyMemory {
  /** Requests of callers without a credential, the processor's callbacks among them. */
  private readonly strangers = new MemoryBudget({ total: 16 * mebibyte, perOwner: 4 * mebibyte });
  /** Requests of callers with one, by tenant. */
  private readonly callers = new MemoryBudget({ total: 128 * mebibyte, perOwner: 64 * mebibyte });
  /** Answers that wait for their readers, by tenant. */
  private readonly answers = new MemoryBudget({ total: 128 * mebibyte, perOwner: 24 * mebibyte });

  /** Bounds of a body whose sender has no credential, or has it in the body. */
  ofStranger(address: string, limit: number = strangerBodyBytes): BodyBounds {
    return { limit, budget: this.strangers, owner: addressBlock(address), milliseconds: strangerMilliseconds };
  }

  /** Bounds of a body whose sender is known. */
  ofCaller(tenantId: string, limit: number): BodyBounds {
    return { limit, budget: this.callers, owner: tenantId };
  }

  /** Holds the greatest message of a gRPC caller without a credential, until it has come. */
  holdStranger(address: string, evict: () => void): Hold {
    const hold = this.strangers.hold(addressBlock(address), evict);
    hold.set(strangerBodyBytes);
    return hold;
  }

  /** Holds an answer until it has been taken. A reader that takes too long while others want memory loses its connection. */
  holdAnswer(tenantId: string, response: ServerResponse, bytes: number): void {
    const hold = this.answers.hold(tenantId, () => response.destroy());
    hold.set(bytes);
    response.once('close', () => hold.release());
  }
}
