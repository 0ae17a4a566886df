import { readdirSync, readFileSync } from 'node:fs';
import { expect } from 'chai';
import { checkNewPassword } from './password-policy.ts';
import { hashPassword, passwordThreads, verifyPassword } from './passwords.ts';

describe('passwords', () => {
  it('match only their own hash', async () => {
    const [right, other] = await Promise.all([hashPassword('correct horse'), hashPassword('battery staple')]);
    expect(await verifyPassword([other, right], 'correct horse', 'a')).to.deep.equal([1]);
    expect(await verifyPassword([], 'correct horse', 'a')).to.deep.equal([]);
  });

  it('of one owner wait in bounded number, without holding up others', async () => {
    const outcome = (owner: string) =>
      hashPassword('correct horse', owner).then(
        () => 'hashed',
        (error: { code?: string }) => error.code,
      );
    const accepted = passwordThreads + 16;
    const outcomes = Array.from({ length: accepted + 2 }, () => outcome('a'));
    expect(await outcome('b')).to.equal('hashed');
    const all = await Promise.all(outcomes);
    expect(all.slice(0, accepted)).to.deep.equal(Array.from({ length: accepted }, () => 'hashed'));
    expect(all.slice(accepted)).to.deep.equal(['UNAVAILABLE', 'UNAVAILABLE']);
  });

  it('are hashed for others although many owners have as many waiting as they may', async () => {
    const owners = Array.from({ length: 32 }, (_, index) => `owner ${index}`);
    const crowd = owners.flatMap((owner) =>
      Array.from({ length: 16 }, () =>
        hashPassword('correct horse', owner).catch((error: { code?: string }) => error.code),
      ),
    );
    const began = performance.now();
    expect(await Promise.all(['x', 'y'].map((owner) => hashPassword('correct horse', owner)))).to.have.length(2);
    const waited = performance.now() - began;
    const outcomes = await Promise.all(crowd);
    expect(waited, 'their turn comes').to.be.below((performance.now() - began) / 3);
    expect(outcomes.filter((outcome) => outcome === 'UNAVAILABLE')).to.have.length.within(1, 2);
  });

  it('are hashed in threads of low priority, so that a storm of sign-ins leaves the cores to requests', async function () {
    if (process.platform !== 'linux') this.skip();
    // Their threads are kept for a while.
    await Promise.all(Array.from({ length: passwordThreads }, () => hashPassword('correct horse', 'a')));
    const priorities = readdirSync('/proc/self/task').map((id) => {
      const text = readFileSync(`/proc/self/task/${id}/stat`, 'latin1');
      // The 19th field is the niceness; the second one is the name in parentheses.
      return Number(text.slice(text.lastIndexOf(')') + 2).split(' ')[16]);
    });
    const own = Math.min(...priorities);
    expect(priorities.filter((priority) => priority > own)).to.have.length(passwordThreads);
  });

  describe('that are new', () => {
    const words = ['ada.lovelace@analytical.example', 'Ada Lovelace', 'analytical'];
    const verdict = (password: string, passwordStrength = 3) =>
      checkNewPassword(password, { passwordStrength }, { words }).then(
        () => 'accepted',
        (error: Error) => error.message,
      );
    const easy = 'password is too easy to guess: avoid well-known passwords, names and patterns';
    for (const [password, expected] of [
      ['correct horse battery staple', 'accepted'],
      ['vXq7-rT2m_Lp9w', 'accepted'],
      ['x'.repeat(50) + 'vXq7-rT2m_Lp9w', 'accepted'],
      ['password1234', easy],
      ['P@ssw0rd1234!', easy],
      ['111111111111', easy],
      ['qwertyuiop123', easy],
      ['1q2w3e4r5t6y', easy],
      ['adalovelace1', easy],
      ['ada.lovelace@analytical.example', easy],
      ['analytical2024', easy],
      ['passwordpasswordpassword', easy],
      ['Adminadminadmin', easy],
      ['Adaadaadaada', easy],
      ['eleven char', 'password must have at least 12 characters'],
    ] as const) {
      it(`${expected === 'accepted' ? 'accepts' : 'refuses'} ${password.slice(0, 40)}`, async () => {
        expect(await verdict(password)).to.equal(expected);
      });
    }

    it('need only their length if the policy says so, and more than that if it says more', async () => {
      expect(await verdict('password1234', 0)).to.equal('accepted');
      expect(await verdict('wrong password', 3)).to.equal('accepted');
      expect(await verdict('wrong password', 4)).to.equal(easy);
    });

    it('do not hold up the process while they are checked', async () => {
      let longest = 0;
      let before = performance.now();
      const timer = setInterval(() => {
        longest = Math.max(longest, performance.now() - before);
        before = performance.now();
      }, 5);
      const results = await Promise.all(Array.from({ length: 8 }, () => verdict('p4$$w0rd'.repeat(8))));
      clearInterval(timer);
      expect(new Set(results)).to.deep.equal(new Set([easy]));
      expect(longest).to.be.below(3000);
    });

    it('wait in bounded number', async () => {
      const all = await Promise.all(Array.from({ length: 12 }, () => verdict('correct horse battery staple')));
      expect(all.filter((result) => result === 'accepted')).to.have.length(9);
      expect(all.filter((result) => result.includes('try again'))).to.have.length(3);
    });
  });
});
