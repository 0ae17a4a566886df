import { expect } from 'chai';
import { Paging } from './paging.ts';

describe('paging', () => {
  const paging = new Paging(Buffer.alloc(32, 1));
  const scope = ['acme', 'devices', 'status=online'];
  const cursorOf = (row: number) => [row];

  it('walks a list to an empty token, also when the last page is exactly full', () => {
    const all = [1, 2, 3, 4];
    const seen: number[] = [];
    let token = '';
    let pages = 0;
    do {
      const page = paging.open<number[]>({ pageSize: 2, pageToken: token }, scope);
      const rest = all.filter((row) => row > (page.after?.[0] ?? 0)).slice(0, page.size + 1);
      const closed = paging.close(rest, page, scope, cursorOf);
      seen.push(...closed.rows);
      token = closed.nextPageToken;
      pages += 1;
    } while (token !== '');
    expect(seen).to.deep.equal(all);
    expect(pages).to.equal(2);
  });

  for (const [name, size, want] of [
    ['the default for 0', 0, 50],
    ['the given size', 7, 7],
    ['the maximum for a larger size', 5000, 500],
  ] as const) {
    it(`uses ${name}`, () => expect(paging.open({ pageSize: size, pageToken: '' }, scope).size).to.equal(want));
  }

  it('rejects a negative size', () => {
    expect(() => paging.open({ pageSize: -1, pageToken: '' }, scope)).to.throw('page_size');
  });

  it('makes tokens that do not tell where a page ended', () => {
    const hash = 'c0ffee'.repeat(10);
    const page = paging.open<{ hash: string }>({ pageSize: 1, pageToken: '' }, scope);
    const tokens = [scope, ['acme', 'devices', '']].map((of) =>
      Buffer.from(paging.close([hash, ''], page, of, (row) => ({ hash: row })).nextPageToken, 'base64url'),
    );
    for (const token of tokens) expect(token.toString('latin1')).not.to.contain('hash').and.not.to.contain('c0ffee');
    // What one list shows of a cursor tells nothing about that of another.
    const [one, other] = tokens.map((token) => token.subarray(16));
    const equal = one!.filter((byte, index) => byte === other![index]);
    expect(equal.length).to.be.below(one!.length / 4);
  });

  it('rejects a token of another tenant, filter or key, a modified one and nonsense', () => {
    const page = paging.open<number[]>({ pageSize: 1, pageToken: '' }, scope);
    const token = paging.close([1, 2], page, scope, cursorOf).nextPageToken;
    const refused = (pageToken: string, with_ = scope, by = paging) =>
      expect(() => by.open({ pageSize: 1, pageToken }, with_)).to.throw('page_token');
    refused(token, ['other', 'devices', 'status=online']);
    refused(token, ['acme', 'devices', 'status=offline']);
    refused(token, scope, new Paging(Buffer.alloc(32, 2)));
    refused(`A${token.slice(1)}` === token ? `B${token.slice(1)}` : `A${token.slice(1)}`);
    for (const addition of ['A', '=', '!', ' ', '\n']) refused(`${token}${addition}`);
    refused('nonsense');
    refused('%%%');
  });
});
