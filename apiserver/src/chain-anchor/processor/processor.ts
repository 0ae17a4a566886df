// Client of the transaction processor (the ARC API): submission, status and fee policy.
import { toHex, txidOf } from '@kellet/verify';
import { readText } from '../../platform/outbound/bounded-body.ts';
import { traceRequestTo } from '../../platform/outbound/outgoing-call.ts';
import { type FeeRate, floorRate, lowerRate } from './fees.ts';
import { parseReport, type StatusReport } from './processor-status.ts';

/** The processor could not be reached or gave no usable response: nothing is known about the transaction. */
export class ProcessorUnavailable extends Error {
  override readonly name = 'ProcessorUnavailable';
}

/** The result of a submission: a report of the transaction's status, or a refusal of its bytes (ARC errors 400–475). */
export type Submission = { readonly report: StatusReport } | { readonly refused: number; readonly message: string };

export interface ProcessorOptions {
  /** Base URL, without /v1. */
  readonly url: string;
  /** Bearer token; empty for none. */
  readonly token: string;
  /** Callback URL; empty for none. */
  readonly callbackUrl: string;
  /** The highest rate that is paid, whatever the processor asks for. */
  readonly maximumRate: FeeRate;
  /** Called when the processor asks for more. */
  readonly onHighRate: (asked: FeeRate) => void;
}

/** How long the processor may wait for the network before it responds to a submission, in seconds. */
const networkSeconds = '2';
const responseMilliseconds = 15_000;

/** The longest response: a transaction with its Merkle path takes a few KiB. */
const maxBytes = 4 * 1024 * 1024;
const policyMilliseconds = 600_000;

export class Processor {
  private readonly options: ProcessorOptions;
  private readonly base: string;
  private rate: FeeRate | undefined;
  private rateReadAt = -Infinity;

  constructor(options: ProcessorOptions) {
    this.options = options;
    this.base = options.url.replace(/\/+$/, '');
  }

  /**
   * Submits raw bytes; resubmitting is harmless. The status in the body decides, whatever the HTTP code.
   * Throws ProcessorUnavailable if the response says nothing about the transaction.
   */
  async submit(raw: Uint8Array): Promise<Submission> {
    const { callbackUrl } = this.options;
    const first = await this.post(raw, callbackUrl);
    // A rejected callback URL must not keep a batch off the chain: polling suffices without it. A processor returns 400 for a
    // request that it does not accept, and 460 and above for a transaction.
    if ('refused' in first && first.refused === 400 && callbackUrl !== '') return this.post(raw, '');
    return first;
  }

  /** Returns the report in a response, or undefined. Throws ProcessorUnavailable for one about another transaction. */
  private reportOn(txid: string, body: unknown): StatusReport | undefined {
    const report = parseReport(body);
    if (report && report.txid !== txid)
      throw new ProcessorUnavailable(`asked about ${txid}, the processor responded about ${report.txid}`);
    return report;
  }

  private async post(raw: Uint8Array, callbackUrl: string): Promise<Submission> {
    const headers: Record<string, string> = { 'content-type': 'application/json', 'x-maxtimeout': networkSeconds };
    if (callbackUrl !== '') headers['x-callbackurl'] = callbackUrl;
    const { status, body } = await this.request('/v1/tx', '/v1/tx', {
      method: 'POST',
      headers,
      body: JSON.stringify({ rawTx: toHex(raw) }),
    });
    const report = this.reportOn(txidOf(raw), body);
    if (report) return { report };
    if (status >= 400 && status < 500 && ![401, 403, 404, 408, 409, 429].includes(status)) {
      return { refused: status, message: describe(body) };
    }
    throw new ProcessorUnavailable(`the processor returned ${status}: ${describe(body)}`);
  }

  /**
   * Returns the status of a transaction, or undefined if the processor does not know it.
   * Throws ProcessorUnavailable.
   */
  async status(txid: string): Promise<StatusReport | undefined> {
    const { status, body } = await this.request(`/v1/tx/${txid}`, '/v1/tx/{txid}', { headers: {} });
    const report = this.reportOn(txid, body);
    if (report) return report;
    if (status === 404) return undefined;
    throw new ProcessorUnavailable(`the processor returned ${status}: ${describe(body)}`);
  }

  /**
   * Returns the processor's fee rate, refreshed every ten minutes, but no more than the maximum: all of what an anchor spends is
   * its fee. While the processor is unavailable, returns the last known rate or the floor.
   */
  async feeRate(): Promise<FeeRate> {
    if (performance.now() - this.rateReadAt < policyMilliseconds) return this.rate ?? floorRate;
    try {
      const { body } = await this.request('/v1/policy', '/v1/policy', { headers: {} });
      const fee = (body as { policy?: { miningFee?: Partial<FeeRate> } } | undefined)?.policy?.miningFee;
      if (Number.isFinite(fee?.satoshis) && Number.isFinite(fee?.bytes) && fee!.bytes! > 0) {
        const asked = { satoshis: fee!.satoshis!, bytes: fee!.bytes! };
        const { maximumRate, onHighRate } = this.options;
        this.rate = lowerRate(asked, maximumRate);
        if (this.rate !== asked) onHighRate(asked);
        this.rateReadAt = performance.now();
      }
    } catch (error) {
      if (!(error instanceof ProcessorUnavailable)) throw error;
    }
    return this.rate ?? floorRate;
  }

  /** Refreshes the fee rate on next use: a refusal may mean that it has changed. */
  forgetPolicy(): void {
    this.rateReadAt = -Infinity;
  }

  /**
   * Sends a request without trace context: the processor is a third party and must not learn which transactions and
   * calls belong together.
   */
  private async request(
    path: string,
    template: string,
    init: { method?: string; headers: Record<string, string>; body?: string },
  ): Promise<{ status: number; body: unknown }> {
    const headers = { ...init.headers };
    if (this.options.token !== '') headers['authorization'] = `Bearer ${this.options.token}`;
    let status: number;
    let text: string;
    try {
      const url = new URL(`${this.base}${path}`);
      ({ status, text } = await traceRequestTo({ method: init.method ?? 'GET', url, template }, async (setStatus) => {
        const signal = AbortSignal.timeout(responseMilliseconds);
        const response = await fetch(url, { ...init, headers, signal });
        setStatus(response.status);
        return { status: response.status, text: await readText(response, maxBytes) };
      }));
    } catch (error) {
      throw new ProcessorUnavailable('the processor does not respond', { cause: error });
    }
    try {
      return { status, body: JSON.parse(text) as unknown };
    } catch {
      return { status, body: undefined };
    }
  }
}

/** Describes a refusal for logs and the batch's `error`. */
function describe(body: unknown): string {
  if (typeof body !== 'object' || body === null) return 'no explanation';
  const { extraInfo, detail, message } = body as Record<string, unknown>;
  const text = [extraInfo, detail, message].find((item) => typeof item === 'string' && item !== '') as
    string | undefined;
  return (text ?? 'no explanation').replaceAll('\n', ': ').slice(0, 300);
}
