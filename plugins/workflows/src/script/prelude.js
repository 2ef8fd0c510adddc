// Runs before a script, with the functions of the host. What it keeps for itself, a script cannot
// reach; what a script does to the language, it does to itself.
(function (host, languageNames) {
    'use strict';
    const { Promise, Map, Set, Object, Reflect, JSON } = globalThis;
    const { parse } = JSON;
    const { defineProperty, freeze } = Object;
    const all = Promise.all.bind(Promise);
    const { set, get, delete: remove } = Map.prototype;
    const { apply } = Reflect;
    const answers = new Map();

    // Nothing but the language.
    const language = new Set(languageNames);
    for (const name of Reflect.ownKeys(globalThis)) {
        if (typeof name === 'string' && !language.has(name)) {
            delete globalThis[name];
        }
    }

    function agent(prompt, options) {
        return new Promise((resolve) => {
            const call = host.agent(prompt, options);
            apply(set, answers, [call, resolve]);
        });
    }

    // An item's failure is its own. What ends the run does not come by here: it ends the script.
    async function item(run) {
        try {
            return (await run()) ?? null;
        } catch {
            return null;
        }
    }

    async function parallel(tasks) {
        host.items('parallel', tasks, true);
        const running = [];
        for (let index = 0; index < tasks.length; index++) {
            const task = tasks[index];
            running[index] = item(() => task());
        }
        return all(running);
    }

    async function pipeline(items, ...stages) {
        host.items('pipeline', items, false);
        host.items('pipeline stages', stages, true);
        const running = [];
        for (let index = 0; index < items.length; index++) {
            const first = items[index];
            running[index] = item(async () => {
                let value = first;
                for (let at = 0; at < stages.length; at++) {
                    value = await stages[at](value, first, index);
                }
                return value;
            });
        }
        return all(running);
    }

    function phase(title) {
        host.phase(title);
    }

    function log(text) {
        host.log(text);
    }

    for (const hook of [agent, parallel, pipeline, phase, log]) {
        defineProperty(globalThis, hook.name, { value: freeze(hook), enumerable: false });
    }

    return freeze({
        // `value` is JSON, or absent for a call that gets no answer any more.
        settle(call, value) {
            const resolve = apply(get, answers, [call]);
            apply(remove, answers, [call]);
            if (resolve !== undefined) {
                resolve(parse(value));
            }
        },
        give(args) {
            defineProperty(globalThis, 'args', { value: parse(args), enumerable: false });
        },
    });
})
