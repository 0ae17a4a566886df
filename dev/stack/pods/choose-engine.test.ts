import { expect } from 'chai';
import { chooseEngine, type MachineFacts } from './choose-engine.ts';

describe('stack: choice of what runs pods', () => {
  const nothing: MachineFacts = {
    ...{ requested: undefined, containerEngine: undefined, hasKind: false },
    ...{ isLinux: true, isRoot: false, hasContainerRuntime: false, hasControlGroups: true },
  };
  const docker = { containerEngine: 'docker', hasKind: true } as const;
  const node = { isRoot: true, hasContainerRuntime: true } as const;
  const cases: [string, Partial<MachineFacts>, string | RegExp][] = [
    ['nothing available', {}, 'kwok'],
    ['a container engine and kind', docker, 'kind'],
    ['podman and kind', { ...docker, containerEngine: 'podman' }, 'kind'],
    ['everything', { ...docker, ...node }, 'kind'],
    ['a container engine without kind, and root', { ...docker, ...node, hasKind: false }, 'kubelet'],
    ['a container engine without kind, not as root', { ...docker, hasKind: false }, 'kwok'],
    ['kind without a container engine, and root', { ...node, hasKind: true }, 'kubelet'],
    ['root and containerd', node, 'kubelet'],
    ['containerd, not as root', { hasContainerRuntime: true }, 'kwok'],
    ['root without containerd', { isRoot: true }, 'kwok'],
    ['root without control groups', { ...node, hasControlGroups: false }, 'kwok'],
    ['root on another system', { ...node, isLinux: false }, 'kwok'],
    ['everything, and ENGINE empty', { ...docker, ...node, requested: '' }, 'kind'],
    ['everything, and ENGINE=kubelet', { ...docker, ...node, requested: 'kubelet' }, 'kubelet'],
    ['everything, and ENGINE=kwok', { ...docker, ...node, requested: 'kwok' }, 'kwok'],
    ['ENGINE=kind without a container engine', { ...node, requested: 'kind' }, /no container engine responds/],
    [
      'ENGINE=kind without kind',
      { ...docker, hasKind: false, requested: 'kind' },
      /docker responds, but the command kind/,
    ],
    ['ENGINE=kubelet, not as root', { hasContainerRuntime: true, requested: 'kubelet' }, /it needs root/],
    ['ENGINE=k3s', { requested: 'k3s' }, /ENGINE=k3s is unknown: it must be one of kind, kubelet, kwok/],
  ];
  for (const [title, facts, want] of cases) {
    it(`with ${title}: ${typeof want === 'string' ? want : 'an error'}`, () => {
      const choose = () => chooseEngine({ ...nothing, ...facts });
      if (typeof want === 'string') expect(choose()).to.equal(want);
      else expect(choose).to.throw(want);
    });
  }
});
