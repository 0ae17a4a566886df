import { type TokenResponse, ValidateTokenResponse_Reason as Reason } from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import { decodeJwt } from 'jose';
import { createLogger } from '../../platform/observability/logger.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { codeOf, refusal } from '../../platform/testing/refusals.ts';
import type { AccessTokens } from '../access-tokens/access-tokens.ts';
import { method, TestAuth } from '../testing/test-auth.ts';
import { deleteRevoked, maximumSessions, Sessions } from './sessions.ts';
import { SignInEvents } from './sign-in-events.ts';

describe('refresh', () => {
  const at = TestAuth.define();

  const refresh = (refreshToken: string) => at.call(method.refresh, { refreshToken });

  it('returns a new pair for each token, and stores no token in clear text', async () => {
    const { tokens, user } = await at.signedIn();
    const second = await refresh(tokens.refreshToken);
    const third = await refresh(second.refreshToken);
    expect(new Set([tokens, second, third].map((pair) => pair.refreshToken)).size).to.equal(3);
    expect((await at.auth.authenticate(third.accessToken, '127.0.0.1')).userId).to.equal(user.user_id);
    const { rows } = await at.test.database.system((tx) => tx.query('SELECT * FROM refresh_tokens'));
    const text = JSON.stringify(rows);
    for (const { refreshToken } of [tokens, second, third]) {
      expect(text).not.to.contain(refreshToken);
      expect(text).not.to.contain(JSON.stringify([...Buffer.from(refreshToken, 'base64url')]).slice(1, -1));
    }
  });

  it('returns the same successor to concurrent exchanges, and to a repeat within ten seconds', async () => {
    const { tokens } = await at.signedIn();
    const pairs = await Promise.all(Array.from({ length: 6 }, () => refresh(tokens.refreshToken)));
    expect(new Set(pairs.map((pair: TokenResponse) => pair.refreshToken)).size).to.equal(1);
    at.clock.advance(9000);
    expect((await refresh(tokens.refreshToken)).refreshToken).to.equal(pairs[0]!.refreshToken);
    await refresh(pairs[0]!.refreshToken);
  });

  it('ends the family and its access tokens when a used token is presented too late', async () => {
    const { tokens } = await at.signedIn();
    const second = await refresh(tokens.refreshToken);
    const sessionId = decodeJwt(second.accessToken)['session'] as string;
    at.clock.advance(10_001);
    expect(await codeOf(refresh(tokens.refreshToken))).to.equal('UNAUTHENTICATED');
    expect(await codeOf(refresh(second.refreshToken))).to.equal('UNAUTHENTICATED');
    expect(await at.validate(second.accessToken)).to.include({ valid: false, reason: Reason.revoked });
    await eventually(() => at.notified.includes(`session:${sessionId}`));
  });

  it('ends the family when a token is presented after its successor was used', async () => {
    const { tokens } = await at.signedIn();
    const second = await refresh(tokens.refreshToken);
    const third = await refresh(second.refreshToken);
    expect(await codeOf(refresh(tokens.refreshToken))).to.equal('UNAUTHENTICATED');
    expect(await codeOf(refresh(third.refreshToken))).to.equal('UNAUTHENTICATED');
  });

  it('extends a session by thirty days at a time, ninety in all', async () => {
    const { tokens } = await at.signedIn();
    const day = 86_400_000;
    let pair: TokenResponse = tokens;
    for (const days of [29, 29, 29]) {
      at.clock.advance(days * day);
      pair = await refresh(pair.refreshToken);
    }
    at.clock.advance(3 * day - 60_000);
    pair = await refresh(pair.refreshToken);
    expect(pair.expiresIn).to.be.within(50, 60);
    at.clock.advance(60_000);
    expect(await codeOf(refresh(pair.refreshToken))).to.equal('UNAUTHENTICATED');
    const other = await at.signedIn();
    at.clock.advance(30 * day);
    expect(await codeOf(refresh(other.tokens.refreshToken))).to.equal('UNAUTHENTICATED');
  });

  it('rejects malformed tokens with the same error', async () => {
    for (const text of ['', 'nonsense', 'A'.repeat(43), "'; DROP TABLE users; --"]) {
      const { code, message } = await refusal(refresh(text));
      expect([code, message]).to.deep.equal(['UNAUTHENTICATED', 'the refresh token is not valid: sign in again']);
    }
  });

  it('is refused to a session for which it was called too often, whose tokens hold', async () => {
    const { tokens } = await at.signedIn();
    let pair: TokenResponse = tokens;
    for (let count = 0; count < 300; count += 1) pair = await refresh(pair.refreshToken);
    const { code, retryAfterSeconds } = await refusal(refresh(pair.refreshToken));
    expect({ code, retryAfterSeconds }).to.deep.equal({ code: 'RESOURCE_EXHAUSTED', retryAfterSeconds: 288 });
    expect((await at.validate(pair.accessToken)).valid).to.equal(true);
    const { tokens: others } = await at.signedIn();
    await refresh(others.refreshToken);
    at.clock.advance(288_000);
    await refresh(pair.refreshToken);
  });

  it('rejects the token of a user disabled since', async () => {
    const { tokens, user } = await at.signedIn();
    await at.disable(user.user_id);
    expect(await codeOf(refresh(tokens.refreshToken))).to.equal('UNAUTHENTICATED');
  });
});

describe('sessions', () => {
  const at = TestAuth.define();

  it('are listed newest first with the current one marked, and ended one by one', async () => {
    const { user, caller, tokens } = await at.signedIn();
    const other = await at.login(user.email);
    const list = await at.call(method.listSessions, {}, caller);
    expect(list.sessions.map((session) => session.current)).to.deep.equal([false, true]);
    expect(list.sessions[1]).to.include({ aal: 'aal1' });
    await at.call(method.deleteSession, { sessionId: list.sessions[0]!.sessionId }, caller);
    expect((await at.validate(other.accessToken)).valid).to.equal(false);
    expect((await at.validate(tokens.accessToken)).valid).to.equal(true);
    expect((await at.call(method.listSessions, {}, caller)).sessions).to.have.length(1);
  });

  it('cannot be ended by other users', async () => {
    const [mine, theirs] = [await at.signedIn(), await at.signedIn()];
    const sessionId = theirs.caller.sessionId;
    expect(await codeOf(at.call(method.deleteSession, { sessionId }, mine.caller))).to.equal('NOT_FOUND');
    expect((await at.validate(theirs.tokens.accessToken)).valid).to.equal(true);
  });

  it('are a thousand of a user: the oldest ends', async () => {
    const { user, tokens, caller } = await at.signedIn();
    const second = await at.login(user.email);
    const others = await at.signedIn();
    await at.test.database.system((tx) =>
      tx.query(
        `INSERT INTO sessions SELECT (jsonb_populate_record(s, jsonb_build_object('session_id',
           'ffffffff-ffff-7fff-8fff-' || lpad(n::text, 12, '0')))).*
         FROM sessions s, generate_series(1, $2) AS n WHERE session_id = $1`,
        [caller.sessionId, maximumSessions - 2],
      ),
    );
    expect((await at.validate(tokens.accessToken)).valid).to.equal(true);
    await at.login(user.email);
    expect(await at.validate(tokens.accessToken)).to.include({ valid: false, reason: Reason.revoked });
    await eventually(() => at.notified.includes(`session:${caller.sessionId}`));
    for (const { accessToken } of [second, others.tokens]) {
      expect((await at.validate(accessToken)).valid).to.equal(true);
    }
  });

  it('are refused to a user who has signed in too often', async () => {
    const { user, caller } = await at.signedIn();
    const { tokens: others, caller: another } = await at.signedIn();
    const { database } = at.test;
    const [tokens, keys] = [{ issue: async () => ({ token: '', expiresInSeconds: 0 }) }, Buffer.alloc(32)];
    const events = new SignInEvents({
      within: async () => undefined,
      note: () => undefined,
      noteOnce: () => undefined,
    });
    const parts = { database, clock: at.clock, logger: createLogger('silent'), successorKey: keys, events };
    const sessions = new Sessions({ ...parts, tokens: tokens as unknown as AccessTokens });
    const origin = { userAgent: '', address: '127.0.0.1', requestId: '' };
    const open = () => sessions.open(user.user_id, origin);
    for (let done = 0; done < 300; done += 30) await Promise.all(Array.from({ length: 30 }, open));
    const { code, retryAfterSeconds } = await refusal(open());
    expect({ code, retryAfterSeconds }).to.deep.equal({ code: 'RESOURCE_EXHAUSTED', retryAfterSeconds: 9 });
    expect(await sessions.open(another.userId, origin)).not.to.equal(undefined);
    expect((await at.validate(others.accessToken)).valid).to.equal(true);
    const list = await at.call(method.listSessions, { pageSize: 500 }, caller);
    expect(list.sessions, 'a refused one leaves nothing').to.have.length(301);
    at.clock.advance(9000);
    await open();
  });

  it('are deleted with their tokens once they were ended for some time', async () => {
    const [ended, other] = [await at.signedIn(), await at.signedIn()];
    await at.call(method.logout, {}, ended.caller);
    const remaining = async (before: number) => {
      const { database } = at.test;
      await database.system((tx) => deleteRevoked(tx, new Date(Date.now() + before), 1000));
      const ids = [ended.caller.sessionId, other.caller.sessionId];
      const { rows } = await database.systemRead((tx) =>
        tx.query<{ session_id: string }>(
          'SELECT DISTINCT session_id FROM sessions JOIN refresh_tokens USING (session_id) WHERE session_id = ANY($1)',
          [ids],
        ),
      );
      return rows.length;
    };
    expect(await remaining(-60_000)).to.equal(2);
    expect(await remaining(60_000)).to.equal(1);
    expect(await at.validate(ended.tokens.accessToken)).to.include({ valid: false, reason: Reason.revoked });
    expect(await codeOf(at.call(method.refresh, { refreshToken: ended.tokens.refreshToken }))).to.equal(
      'UNAUTHENTICATED',
    );
  });
});
