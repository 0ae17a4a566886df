// For tests: the data behind a credential, flattened.
import type { DescMessage, MessageInitShape, MessageShape } from '@bufbuild/protobuf';
import type {
  ValidateTokenResponse_GrantSchema,
  ValidateTokenResponseSchema,
} from '@kellet/proto/es/kellet/v1/auth_pb';

type Fields<D extends DescMessage> = Partial<
  Omit<MessageShape<D>, '$typeName' | '$unknown' | 'grant' | 'limitedGrants'>
>;

/** What ValidateToken returns to the gateway for a credential. */
export type TestToken = Fields<typeof ValidateTokenResponseSchema> &
  Fields<typeof ValidateTokenResponse_GrantSchema> & {
    readonly limitedGrants?: { scopes: string[]; deviceGroupIds: string[] }[];
  };

/** Returns ValidateToken's response to the gateway. */
export const responseFor = (token: TestToken): MessageInitShape<typeof ValidateTokenResponseSchema> => {
  const { reason, rateLimitPerMinute, ipAllowlist, sessionId, keyId, name, credentialId, limitedGrants, ...shown } =
    token;
  const grant = { reason, rateLimitPerMinute, ipAllowlist, sessionId, keyId, name, credentialId, limitedGrants };
  return { ...shown, grant };
};
