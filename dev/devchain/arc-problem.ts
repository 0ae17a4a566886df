// Errors of the processor: status codes 400 to 475 with ARC's titles and details.

const catalogue = {
  400: ['Bad request', 'The request seems to be malformed and cannot be processed'],
  404: ['Not found', 'The requested resource could not be found'],
  409: ['Generic error', 'Transaction could not be processed'],
  461: ['Malformed transaction', 'Transaction is malformed and cannot be processed'],
  462: ['Invalid inputs', 'Transaction is invalid because the inputs are non-existent or spent'],
  463: ['Malformed transaction', 'Transaction is malformed and cannot be processed'],
  464: ['Invalid outputs', 'Transaction is invalid because the outputs are non-existent or invalid'],
  465: ['Fee too low', 'Fees are insufficient'],
  468: ['Invalid BUMPs', 'BEEF validation failed: BEEF invalid'],
  469: ['Merkle Roots validation failed', "BEEF validation failed: couldn't verify Merkle Roots"],
  474: ['Transaction size validation failed', 'Transaction size validation failed'],
  475: [
    'Mined ancestors not found in BUMPs',
    "BEEF validation failed: couldn't find mined ancestor of the transaction in provided BUMPs",
  ],
} as const satisfies Record<number, readonly [string, string]>;

/** Status code of an error. */
export type ProblemStatus = keyof typeof catalogue;

/** Body of an error, in ARC's field order. */
export interface ProblemBody {
  readonly detail: string;
  readonly extraInfo: string;
  readonly instance: null;
  readonly status: ProblemStatus;
  readonly title: string;
  readonly txid: string | null;
  readonly type: string;
}

/** Error of a request or a transaction. */
export class ArcProblem extends Error {
  readonly body: ProblemBody;

  /**
   * `reason` goes into `extraInfo` unchanged; refusals of a parsed transaction start with `arc error <status>: `.
   * `txid` is the display hex of the rejected transaction, once it is known.
   */
  constructor(status: ProblemStatus, reason: string, txid: string | null = null) {
    super(reason);
    const [title, detail] = catalogue[status];
    const extraInfo = txid === null ? reason : `arc error ${status}: ${reason}`;
    const type = `https://bitcoin-sv.github.io/arc/#/errors?id=_${status}`;
    this.body = { detail, extraInfo, instance: null, status, title, txid, type };
  }
}
