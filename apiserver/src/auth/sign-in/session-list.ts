// Lists and ends the caller's own sessions.
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { notFound } from '../../platform/errors.ts';
import { idField } from '../../platform/requests/fields.ts';
import type { Implementation } from '../../platform/rpc.ts';
import type { AuthPlatform } from '../credentials/auth-platform.ts';
import type { LastUsed } from '../credentials/last-used.ts';
import { revokeSessions } from './sessions.ts';

interface SessionRow {
  session_id: string;
  user_agent: string;
  ip: string;
  aal: string;
  created_at: Date;
  last_used_at: Date;
}

/**
 * The handlers of `auth/sessions`. They use system transactions, because a platform administrator has sessions but no
 * tenant; every query names the user.
 */
export function sessionHandlers(platform: AuthPlatform, lastUsed: LastUsed): Implementation<typeof AuthService> {
  const { database, paging, clock } = platform;
  return {
    listSessions: async (request, { caller }) => {
      const scope = [caller.tenantId, 'sessions', caller.userId];
      const page = paging.open<string>(request, scope);
      await lastUsed.write();
      const { rows } = await database.systemRead((tx) =>
        tx.query<SessionRow>(
          `SELECT session_id, user_agent, ip, aal, created_at, last_used_at FROM sessions
           WHERE user_id = $1 AND revoked_at IS NULL AND expires_at > $4 AND ($2::uuid IS NULL OR session_id < $2)
           ORDER BY session_id DESC LIMIT $3`,
          [caller.userId, page.after ?? null, page.size + 1, new Date(clock.now())],
        ),
      );
      const closed = paging.close(rows, page, scope, (row) => row.session_id);
      return {
        nextPageToken: closed.nextPageToken,
        sessions: closed.rows.map((row) => ({
          sessionId: row.session_id,
          userAgent: row.user_agent,
          ip: row.ip,
          aal: row.aal,
          createdAt: timestampFromDate(row.created_at),
          lastUsedAt: timestampFromDate(row.last_used_at),
          current: row.session_id === caller.sessionId,
        })),
      };
    },

    deleteSession: async (request, { caller }) => {
      const sessionId = idField('session', request.sessionId);
      await database.system(async (tx) => {
        const { rows } = await tx.query(
          'SELECT FROM sessions WHERE session_id = $1 AND user_id = $2 AND revoked_at IS NULL',
          [sessionId, caller.userId],
        );
        if (rows.length === 0) throw notFound('session');
        await revokeSessions(tx, [sessionId]);
      });
      return {};
    },
  };
}
