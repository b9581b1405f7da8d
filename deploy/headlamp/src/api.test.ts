import { describe, expect, it } from 'vitest';
import { Ask, problem, proxied, reasonLines, USUAL_PLACE, waitingGroups, why } from './api';

function recording(answer: unknown): { ask: Ask; asked: [string, Record<string, string>][] } {
  const asked: [string, Record<string, string>][] = [];
  return {
    asked,
    ask: async (path, options) => {
      asked.push([path, options.headers]);
      return answer;
    },
  };
}

describe('questions', () => {
  it('go through the API server to the service, with names escaped', async () => {
    const { ask, asked } = recording({ verdict: 'pending' });
    const answer = await why(ask, { ...USUAL_PLACE, cluster: 'a b' }, 'team-a', 'train-0');
    expect(answer.verdict).toBe('pending');
    expect(asked).toEqual([
      [
        '/api/v1/namespaces/kai-system/services/kai-api:8080/proxy/v1/clusters/a%20b/pods/team-a/train-0/why',
        { Accept: 'application/json' },
      ],
    ]);
  });

  it('carry the key in a header of their own', async () => {
    const { ask, asked } = recording({ items: [] });
    await waitingGroups(ask, { ...USUAL_PLACE, key: 'kai_x' });
    expect(asked[0][0]).toBe(proxied(USUAL_PLACE, '/v1/clusters/default/groups?pending=true&limit=200'));
    expect(asked[0][1]['X-Kai-Key']).toBe('kai_x');
  });
});

describe('answers', () => {
  it('say how many pods a reason is of, where they are several', () => {
    expect(reasonLines([{ message: 'no room' }, { message: 'over quota', pods: 3 }])).toEqual([
      'no room',
      '3 pods: over quota',
    ]);
  });

  it('of failures say what to do', () => {
    expect(problem({ status: 401 })).toContain('asks for a key');
    expect(problem({ status: 404 })).toContain('never heard of it');
    expect(problem(new Error('timeout'))).toBe('timeout');
  });
});
