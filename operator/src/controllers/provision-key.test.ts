import { apiVersion, type ProvisioningTemplate, rotateKeyAnnotation, sealedKeyAnnotation } from '@kellet/crds';
import { KubernetesError } from '@kellet/kubernetes';
import { expect } from 'chai';
import { holds } from '../conditions.ts';
import type { Secret } from '../resources.ts';
import { decideMint, type MintDecision, mintedSecret, readKey, resolveProvisionKey } from './provision-key.ts';

function makeTemplate(rotation?: string, sealed?: string): ProvisioningTemplate {
  const annotations = {
    ...(rotation !== undefined && { [rotateKeyAnnotation]: rotation }),
    ...(sealed !== undefined && { [sealedKeyAnnotation]: sealed }),
  };
  return {
    apiVersion,
    kind: 'ProvisioningTemplate',
    metadata: {
      name: 'sensors',
      namespace: 'acme',
      uid: 'ours',
      annotations,
    },
    spec: { profileRef: { name: 'p' } },
  };
}

describe('decideMint', () => {
  const own = mintedSecret(makeTemplate(), 'key');
  const rotated = mintedSecret(makeTemplate('1'), 'key');
  const foreign: Secret = { ...own, metadata: { ...own.metadata, ownerReferences: undefined } };
  const former: Secret = {
    ...own,
    metadata: { ...own.metadata, ownerReferences: [{ ...own.metadata.ownerReferences![0]!, uid: 'former' }] },
  };
  const cases: [string, ProvisioningTemplate, Secret | undefined, MintDecision][] = [
    ['no Secret', makeTemplate(), undefined, 'create'],
    ['its Secret', makeTemplate(), own, 'use'],
    ['a Secret of another owner', makeTemplate(), foreign, 'conflict'],
    ['the Secret of a former template with the same name', makeTemplate(), former, 'conflict'],
    ['a requested rotation', makeTemplate('1'), own, 'rotate'],
    ['a processed rotation', makeTemplate('1'), rotated, 'use'],
    ['another rotation', makeTemplate('2'), rotated, 'rotate'],
    ['a removed annotation', makeTemplate(), rotated, 'use'],
    ['rotated by REST', makeTemplate('1', 'a'), rotated, 'take'],
    ['rotated by REST again', makeTemplate('1', 'b'), mintedSecret(makeTemplate('1', 'a'), 'key'), 'take'],
    ["REST's key is stored", makeTemplate('1', 'a'), mintedSecret(makeTemplate('1', 'a'), 'key'), 'use'],
    [
      'a rotation requested after one by REST',
      makeTemplate('2', 'a'),
      mintedSecret(makeTemplate('1', 'a'), 'key'),
      'rotate',
    ],
    ['a removed key', makeTemplate(), { ...own, data: {} }, 'rotate'],
  ];
  for (const [name, template, secret, want] of cases) {
    it(`${name}: ${want}`, () => expect(decideMint(template, secret)).to.equal(want));
  }
});

describe('mintedSecret', () => {
  it('is owned by the template and contains the key', () => {
    const secret = mintedSecret(makeTemplate(), 'pk_1');
    expect(secret.metadata).to.include({ name: 'sensors-provision-key', namespace: 'acme' });
    expect(secret.metadata.ownerReferences).to.deep.equal([
      {
        apiVersion,
        kind: 'ProvisioningTemplate',
        name: 'sensors',
        uid: 'ours',
        controller: true,
        blockOwnerDeletion: false,
      },
    ]);
    expect(Buffer.from(secret.data!.provisionKey!, 'base64').toString()).to.equal('pk_1');
  });
});

describe('readKey', () => {
  const read = (bytes: Buffer) =>
    readKey('acme', 'sensors-provision-key', bytes.toString('base64'), holds('KeyIssued', 'Minted', ''));

  it('reads text, without the newline that editors add', () => {
    const [plain, edited] = ['schlüssel-0123456', 'schlüssel-0123456\r\n'].map((key) => read(Buffer.from(key)));
    expect(plain)
      .to.have.property('sha256')
      .that.matches(/^[0-9a-f]{64}$/);
    expect(edited).to.deep.equal(plain);
  });

  for (const [what, bytes, reason] of [
    ['bytes that are not UTF-8', Buffer.alloc(32, 0xff), 'KeyNotText'],
    ['a NUL', Buffer.from('0123456789\x000123456789'), 'KeyNotText'],
    ['15 characters', Buffer.from('0123456789abcde'), 'KeyTooShort'],
    ['nothing', Buffer.alloc(0), 'KeyTooShort'],
  ] as const) {
    it(`rejects ${what}`, () => expect(read(bytes)).to.have.nested.property('missing.reason', reason));
  }
});

describe('resolveProvisionKey', () => {
  for (const [what, keySecretRef] of [
    ['its own', undefined],
    ['the one it refers to', { name: 'sensors-provision-key' }],
  ] as const) {
    it(`reports a Secret that is too large: ${what}`, async () => {
      const client = {
        find: () => Promise.reject(new KubernetesError(0, { message: 'large' }, { failure: 'tooLarge' })),
      } as never;
      const template = makeTemplate();
      if (keySecretRef) template.spec.keySecretRef = keySecretRef;
      const key = await resolveProvisionKey(
        client,
        template,
        'acme',
        () => '',
        () => undefined,
      );
      const message = 'Secret sensors-provision-key is larger than 128 KiB';
      expect(key).to.deep.nested.include({ 'missing.reason': 'SecretUnusable', 'missing.message': message });
    });
  }
});
