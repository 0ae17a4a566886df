// For tests: what stands behind a credential, written flat.
import type { DescMessage, MessageInitShape, MessageShape } from '@bufbuild/protobuf';
import type {
  ValidateTokenResponse_GrantSchema,
  ValidateTokenResponseSchema,
} from '@kellet/proto/es/kellet/v1/auth_pb';

type Fields<D extends DescMessage> = Partial<Omit<MessageShape<D>, '$typeName' | '$unknown' | 'grant'>>;

/** What ValidateToken tells the gateway of a credential. */
export type TestToken = Fields<typeof ValidateTokenResponseSchema> & Fields<typeof ValidateTokenResponse_GrantSchema>;

/** ValidateToken's answer to the gateway. */
export const answerFor = (token: TestToken): MessageInitShape<typeof ValidateTokenResponseSchema> => {
  const { reason, rateLimitPerMinute, ipAllowlist, sessionId, keyId, name, credentialId, ...shown } = token;
  return { ...shown, grant: { reason, rateLimitPerMinute, ipAllowlist, sessionId, keyId, name, credentialId } };
};
