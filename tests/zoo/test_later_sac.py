"""Soft actor-critic, and with later agents' ingredients, against a slow, obvious reference."""

import copy
import itertools
from functools import partial

import pytest
import torch
from conftest import one_run, random_batch, refused
from torch import nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from rl_plasticity.agents import AGENT_NETWORKS, AGENTS, DQN, SAC, Batch
from rl_plasticity.agents.sac import bellman_target
from rl_plasticity.regularizers import make_regularizer
from rl_plasticity.seeding import uniform_at
from rl_plasticity_zoo.distributions import hl_gauss, two_hot
from rl_plasticity_zoo.later_sac import LaterSAC, entropy_target
from rl_plasticity_zoo.norms import StackedDropout, TrainedSequential
from rl_plasticity_zoo.rainbow import Rainbow


class Reference:
    """Soft actor-critic of one run with the ingredients of `settings`, equation by equation."""

    def __init__(self, agent, run, settings):
        self.s, self.run, self.lr = settings, run, settings.get("lr", 3e-4)
        self.critics = [one_run(c, run) for c in agent.critic.net.critics]
        self.targets = copy.deepcopy(self.critics)
        self.actor = one_run(agent.actor.net.trunk, run)
        self.log_alpha = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.groups = [[p for c in self.critics for p in c.parameters()], [*self.actor.parameters()], [self.log_alpha]]
        self.optimizers = [torch.optim.Adam(group, lr=self.lr) for group in self.groups]
        self.norms, self.joint, self.updates = [], settings.get("network") == "xqc", 0
        self.support = torch.linspace(-5, 5, settings.get("bins", 101), dtype=torch.float64)
        for net in (*self.critics, *self.targets, self.actor):
            net.eval()

    def sample(self, obs, eps):
        mean, log_std = self.actor(obs).chunk(2, dim=-1)
        tanh = TanhTransform(cache_size=1)
        squashed = self.s.get("log_std") == "tanh"
        std = (-10 + 6 * (1 + log_std.tanh()) if squashed else log_std.clamp(-10, 2)).exp()
        act = tanh(mean + std * eps)
        return act, Independent(TransformedDistribution(Normal(mean, std), [tanh]), 1).log_prob(act)

    def outputs(self, nets, batch, next_act, following):
        """What critics return for the batch, or for what follows; with BatchNorm the batch is both."""
        pairs = [torch.cat([batch.obs, batch.act], -1), torch.cat([batch.next_obs, next_act], -1)]
        if not self.joint:
            return [net(pairs[following]) for net in nets]
        both = [net.train()(torch.cat(pairs)).chunk(2)[following] for net in nets]
        for net in nets:
            net.eval()
        return both

    def mean(self, output):
        return output.softmax(-1) @ self.support if output.shape[-1] > 1 else output.squeeze(-1)

    def over(self, values, how):
        return torch.stack(values).min(0).values if how == "min" else sum(values) / len(values)

    def target(self, batch, outputs, cost, reward):
        values, how = [self.mean(o) for o in outputs], self.s.get("target_over", "min")
        if self.s.get("critic") != "categorical":
            return reward + batch.discount * (self.over(values, how) - cost)
        rows = []
        for b in range(len(reward)):
            probs = [o[b].softmax(-1) for o in outputs]
            p = probs[min(range(len(values)), key=lambda i: values[i][b])] if how == "min" else sum(probs) / len(probs)
            row = torch.zeros_like(p)
            for weight, z in zip(p, self.support, strict=True):
                at = (reward[b] + batch.discount[b] * (z - cost[b])).clamp(-5, 5).add(5) / (self.support[1] + 5)
                low = min(int(at + 1e-12), len(p) - 1)
                row[low] += weight * (1 - (at - low))
                row[min(low + 1, len(p) - 1)] += weight * (at - low)
            rows.append(row)
        return torch.stack(rows)

    def update(self, batch, noise, scale, chosen):
        s = self.s
        if "lr_end" in s:
            share = min(self.updates / s["lr_decay_updates"], 1)
            for optimizer in self.optimizers:
                optimizer.param_groups[0]["lr"] = self.lr + (s["lr_end"] - self.lr) * share
        self.updates += 1
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_act, next_log_prob = self.sample(batch.next_obs, noise[0])
            outputs = self.outputs([self.targets[i] for i in chosen], batch, next_act, following=1)
            y = self.target(batch, outputs, alpha * next_log_prob, batch.reward / scale)
        loss = 0
        for output in self.outputs(self.critics, batch, next_act, following=0):
            if output.shape[-1] == 1:
                loss = loss + (output.squeeze(-1) - y).square().mean()
            else:
                loss = loss - (y * output.log_softmax(-1)).sum(-1).mean()
        self.step(0, loss)
        for c, t in zip(self.critics, self.targets, strict=True):
            for p, q in zip(c.parameters(), t.parameters(), strict=True):
                q.data.mul_(1 - 0.005).add_(p.data, alpha=0.005)
        if self.updates % s.get("actor_every_updates", 1):
            return
        self.actor.train()
        act, log_prob = self.sample(batch.obs, noise[1])
        self.actor.eval()
        values = [self.mean(c(torch.cat([batch.obs, act], -1))) for c in self.critics]
        self.step(1, (alpha * log_prob - self.over(values, s.get("actor_over", "min"))).mean())
        entropy = -log_prob.detach().mean()
        self.step(2, self.log_alpha.exp() * (entropy + 1.0))

    def step(self, i, loss):
        gradients = torch.autograd.grad(loss, self.groups[i])
        for p, g in zip(self.groups[i], gradients, strict=True):
            p.grad = g
        self.optimizers[i].step()


INGREDIENTS = {
    "sac": {},
    "sac, two critics, no norms": {"num_critics": 2, "layer_norm": False},
    "sac, squashed": {"log_std": "tanh", "lr": 1e-3},
    "categorical": {"critic": "categorical", "bins": 11, "num_critics": 2},
    "categorical, mean": {"critic": "categorical", "bins": 11, "num_critics": 2, "target_over": "mean"},
    "mean, as BRO": {"num_critics": 2, "target_over": "mean", "actor_over": "mean"},
    "subset, as REDQ": {"num_critics": 4, "target_critics": 2, "actor_over": "mean", "actor_every_updates": 2},
    "falling rate": {"lr": 1e-3, "lr_end": 1e-4, "lr_decay_updates": 3},
    "scaled rewards": {"normalize_reward": True},
    "xqc": {"network": "xqc", "critic": "categorical", "bins": 11, "num_critics": 2, "actor_every_updates": 3},
}


@pytest.mark.parametrize("name", INGREDIENTS)
def test_updates_with_later_ingredients_equal_the_reference_for_every_run(name):
    settings = INGREDIENTS[name]
    size = {"actor_width": 8, "critic_width": 12, "actor_blocks": 2, "critic_blocks": 2}
    kind = SAC if name.startswith("sac") else LaterSAC
    agent = kind(4, 2, [3, 4], **(size if "network" in settings else {"hidden": (8, 8)}), **settings).double()
    references = [Reference(agent, run, settings) for run in range(2)]
    for i in range(1, 5):
        batch = Batch(*(x.double() for x in random_batch(2, size=8)))
        noise = agent.noise(1, 8)[0].double()
        scale = torch.ones(2)
        if "normalize_reward" in settings:
            agent.observe_reward_(torch.tensor([1.0, -20.0]), torch.tensor([False, i == 2]))
            scale = agent.reward_norm.scale.clone()
        chosen = [range(len(references[0].critics))] * 2
        if "target_critics" in settings:
            draws = uniform_at(agent.subset_key, 4, agent.subsets)
            chosen = [draw.argsort()[:2].tolist() for draw in draws]
        learns = i % settings.get("actor_every_updates", 1) == 0
        metrics = (agent.update if learns else agent.update_critic)(batch, noise)
        assert ("actor/loss" in metrics) == learns
        for run, reference in enumerate(references):
            reference.update(Batch(*(x[run] for x in batch)), noise[:, run], scale[run], chosen[run])
    for run, reference in enumerate(references):
        assert agent.temperature.net.log_alpha[run].item() == pytest.approx(reference.log_alpha.item(), rel=1e-9)
        pairs = [(agent.actor.net.trunk, reference.actor)]
        pairs += zip(agent.critic.net.critics, reference.critics, strict=True)
        pairs += zip(agent.critic_target.critics, reference.targets, strict=True)
        for ours, theirs in pairs:
            found = [p[run] for p in ours.parameters()]
            torch.testing.assert_close(found, [*theirs.parameters()], rtol=1e-7, atol=1e-9)
    if name == "falling rate":
        assert agent.critic.optimizer.lr.item() == pytest.approx(1e-4)  # at its end


@pytest.mark.parametrize("projection", ["two_hot", "hl_gauss"])
def test_a_target_of_the_expected_value_is_its_encoding(projection):
    agent = LaterSAC(4, 2, [0], hidden=(8,), critic="categorical", bins=11, projection=projection)
    batch, following = random_batch(1), torch.randn(1, 1, 32, 11)
    next_log_prob, alpha = torch.randn(1, 32), torch.tensor([0.5])
    y = bellman_target(batch, following.softmax(-1) @ agent.support, next_log_prob, alpha)
    encode = {"two_hot": two_hot, "hl_gauss": hl_gauss}[projection]
    torch.testing.assert_close(agent._target(batch, following, next_log_prob, alpha), encode(y, agent.support))


def test_target_critics_are_drawn_anew_for_each_run_and_update_all_equally_often():
    agent = LaterSAC(4, 2, [0, 1], hidden=(4,), num_critics=5, target_critics=2)
    values = torch.arange(5.0).expand(2, 5).unsqueeze(-1)
    draws = torch.stack([agent._drawn_critics(values).squeeze(-1) for _ in range(1000)])
    assert (draws[..., 0] != draws[..., 1]).all()  # without replacement
    share = torch.stack([(draws == i).any(-1).float().mean(0) for i in range(5)])
    assert (share - 0.4).abs().max() < 5 * (0.4 * 0.6 / 1000) ** 0.5
    assert not torch.equal(draws[:, 0], draws[:, 1])


def test_dropout_is_in_the_critics_of_an_update_alone_and_differs_in_the_target():
    agent = LaterSAC(4, 2, [0], network="dropout_mlp", hidden=(64, 64), dropout=0.5, num_critics=2)
    names = [type(m).__name__ for m in agent.critic.net.critics[0]]
    assert names[:4] == ["StackedLinear", "StackedDropout", "StackedLayerNorm", "ReLU"]  # as DroQ
    assert not any("Dropout" in type(m).__name__ for m in agent.actor.net.modules())
    obs, act = torch.randn(1, 5, 4), torch.randn(1, 5, 2)
    assert torch.equal(agent.value(obs, act), agent.value(obs, act))
    q, target = (net(obs, act, training=True) for net in (agent.critic.net, agent.critic_target))
    assert not torch.allclose(q, target)
    before = agent.critic.net.critics[0][1].calls.item()
    agent.update(random_batch(1), agent.noise(1, 32)[0])
    assert agent.critic.net.critics[0][1].calls.item() == before + 2  # the critic's loss and the actor's


def test_the_value_is_in_the_unit_of_the_rewards_whatever_they_are_divided_by():
    agent = LaterSAC(4, 2, [0, 1], hidden=(8,), normalize_reward=True)
    plain = LaterSAC(4, 2, [0, 1], hidden=(8,))
    for _ in range(20):
        agent.observe_reward_(torch.tensor([3.0, 30.0]), torch.tensor([False, False]))
    obs, act = torch.randn(2, 5, 4), torch.randn(2, 5, 2)
    scale = agent.reward_norm.scale.float()
    assert scale[1] > 5 * scale[0]
    torch.testing.assert_close(agent.value(obs, act), plain.value(obs, act) * scale[:, None])
    agent.restart_(torch.tensor([1]))  # the statistics belong to the data
    assert torch.equal(agent.reward_norm.scale.float(), scale)


def test_the_published_rules_of_the_target_entropy():
    rules = (None, "half", "full", -1.5)
    found = [LaterSAC(3, 6, [0], hidden=(4,), target_entropy=rule).target_entropy for rule in rules]
    assert found == [-3.0, -3.0, -6.0, -1.5]
    normal = Normal(torch.tensor(0.0), torch.tensor(0.15))
    assert entropy_target("sigma", 6, 0.15) == pytest.approx(6 * normal.entropy().item())  # FlashSAC's


def test_weight_decay_falls_with_the_learning_rate():
    agent = LaterSAC(
        4, 2, [0], lambda net: make_regularizer("weight_decay", net, coef=10.0), hidden=(4,), lr=1e-3, lr_end=0.0,
        lr_decay_updates=2,
    )  # fmt: skip
    for _ in range(3):
        before = agent.actor.net.trunk[0].weight.detach().clone()
        agent.update(random_batch(1), agent.noise(1, 32)[0])
    assert torch.equal(agent.actor.net.trunk[0].weight, before)  # rate and decay are 0


def test_log_std_is_squashed_by_default_with_the_networks_of_papers_that_squash_it():
    names = ("mlp", "simba", "hypersphere", "xqc")
    small = {name: {"hidden": (8,)} if name == "mlp" else RESIDUAL for name in names}
    bounds = {name: LaterSAC(4, 2, [0], network=name, **small[name]).actor.net.bound for name in names}
    assert bounds == {"mlp": "clamp", "simba": "tanh", "hypersphere": "tanh", "xqc": "clamp"}
    assert LaterSAC(4, 2, [0], network="simba", log_std="clamp", **RESIDUAL).actor.net.bound == "clamp"


@pytest.mark.parametrize(("settings", "named"), [
    ({"num_critics": 2, "target_critics": 3}, "target_critics=3.*num_critics=2"),
    ({"least_return": 5.0}, "least_return=5.*greatest_return=5"),
    ({"normalize_reward": True, "greatest_return": -1.0}, "greatest_return.*-1"),
    ({"lr_end": 1e-5}, "lr_end.*lr_decay_updates"),
    ({"lr_end": 0.0, "lr": 0.0, "lr_decay_updates": 5}, "lr_end.*lr"),
    ({"lr_end": 1e-2, "lr_decay_updates": 5}, r"lr_end=0\.01.*lr=0\.0003"),
    ({"critic": "mce"}, "critic.*mse.*'mce'"),
    ({"network": "dropout_mlp", "dropout": 1.0}, r"dropout.*below 1.*1\.0"),
    ({"network": "simba", "hidden": [8]}, "'hidden'.*'simba'"),
    ({"network": "hypersphere", "activation": "gelu"}, "'activation'.*'hypersphere'"),
    ({"network": "simba", "actor_width": 0}, "actor_width.*1.*0"),
    ({"network": "simbav2"}, "'simbav2'.*'simba'"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused_in_one_line(settings, named):
    refused(lambda: LaterSAC(4, 2, [0], **settings), match=named, error=ValueError)


@pytest.mark.parametrize(
    ("make", "fitting"),
    [
        (partial(SAC, 4), "agent=later_sac"),
        (partial(DQN, (4,)), "network=mlp"),
        (partial(Rainbow, (4,)), "network=mlp"),
    ],
)
@pytest.mark.parametrize("network", ["dropout_mlp", "simba", "hypersphere", "xqc", "flash_sac"])
def test_agents_refuse_networks_that_they_would_call_wrongly_and_name_what_takes_the_same_actions(
    make, fitting, network
):
    refused(lambda: make(2, [0], network=network), match=f"{network}.*take {fitting}", error=ValueError)


def test_agents_refuse_modules_that_they_would_not_tell_when_they_train(monkeypatch):
    of_zoo, of_torch, kinds = StackedDropout(0.1, [0]), nn.Dropout(0.1), (nn.Sequential, TrainedSequential)
    for agent, module, net in itertools.product((SAC, LaterSAC), (of_zoo, of_torch), kinds):
        monkeypatch.setitem(AGENT_NETWORKS, "own", lambda *_, net=net, module=module: net(module))
        if (agent, module, net) != (LaterSAC, of_zoo, TrainedSequential):
            refused(lambda agent=agent: agent(4, 2, [0], network="own"), "own", "train", "must")


def test_without_its_settings_it_is_sac_update_for_update():
    agents = [AGENTS[name](4, 2, [0, 1], hidden=(8,), num_critics=2, log_std="clamp") for name in ("sac", "later_sac")]
    for _ in range(3):
        batch = random_batch(2)
        metrics = [agent.update(batch, agent.noise(1, 32)[0]) for agent in agents]
        assert {n: v.tolist() for n, v in metrics[0].items()} == {n: v.tolist() for n, v in metrics[1].items()}
    assert torch.equal(*(agent.value(batch.obs, batch.act) for agent in agents))


def test_the_temperature_falls_by_the_learning_rate_with_a_loss_in_log_alpha_and_ever_slower_with_one_in_alpha():
    falls = {}
    for loss in ("alpha", "log_alpha"):
        agent = LaterSAC(4, 2, [0], hidden=(8, 8), lr=1e-2, target_entropy=-1000.0, temperature_loss=loss)
        for _ in range(30):
            agent.update(random_batch(1), agent.noise(1, 32)[0])
        falls[loss] = -agent.temperature.net.log_alpha.item()
    assert falls["log_alpha"] == pytest.approx(0.3, rel=1e-3)  # Adam's step for a gradient that does not change
    # The gradient shrinks with alpha, and Adam's second moment remembers the larger ones.
    assert 0.2 < falls["alpha"] < 0.295


RESIDUAL = {"actor_width": 8, "critic_width": 12, "critic_blocks": 2}


@pytest.mark.parametrize("settings", [
    {"network": "dropout_mlp", "hidden": (8, 8), "dropout": 0.5},
    *({"network": name} for name in ("simba", "hypersphere", "bro", "xqc", "flash_sac")),
])  # fmt: skip
def test_the_agent_learns_with_every_network_and_each_run_as_alone_with_critics_that_differ(settings):
    settings = settings if "hidden" in settings else settings | RESIDUAL
    # In float64: before BatchNorm a shift has no gradient but rounding, which Adam would make steps of.
    together, alone = (LaterSAC(4, 2, seeds, num_critics=2, **settings).double() for seeds in ([0, 1, 2], [1]))
    first, second = (critic.state_dict().values() for critic in together.critic.net.critics)
    assert not all(torch.equal(p, q) for p, q in zip(first, second, strict=True))
    before = [p.detach().clone() for p in together.actor.parameters()]
    for _ in range(3):
        batch = Batch(*(x.double() for x in random_batch(3)))
        together.observe_(batch.obs[:, 0])
        alone.observe_(batch.obs[1:2, 0])
        together.update(batch, together.noise(1, 32)[0].double())
        alone.update(Batch(*(x[1:2] for x in batch)), alone.noise(1, 32)[0].double())
    for p, q in zip(together.state_dict().values(), alone.state_dict().values(), strict=True):
        if p.ndim and p.shape[0] == 3:
            torch.testing.assert_close(p[1], q[0], rtol=1e-4, atol=1e-5)
    assert all(not torch.equal(p, q) for p, q in zip(before, together.actor.parameters(), strict=True))


def test_actor_critics_and_target_normalize_observations_alike_and_not_actions_and_a_restart_keeps_what_was_seen():
    agent = LaterSAC(4, 2, [0, 1], normalize_obs=True, hidden=(8,))
    plain = LaterSAC(4, 2, [0, 1], hidden=(8,))
    for _ in range(50):
        agent.observe_(3 + 2 * torch.randn(2, 4))
    obs, act = 3 + 2 * torch.randn(2, 6, 4), torch.randn(2, 6, 2)
    norm = agent.actor.net.normalize
    assert 2 < norm.mean.mean() < 4
    seen = norm(obs)
    torch.testing.assert_close(agent.actor.net(obs), plain.actor.net(seen))
    torch.testing.assert_close(agent.critic.net(obs, act), plain.critic.net(seen, act))
    torch.testing.assert_close(agent.critic_target(obs, act), plain.critic_target(seen, act))
    statistics = {n: b.clone() for n, b in agent.named_buffers() if "normalize" in n}
    assert len(statistics) == 9
    agent.act(obs), agent.act(obs, torch.zeros(2, 6, 2)), agent.update(random_batch(2), agent.noise(1, 32)[0])
    agent.restart_(torch.tensor([1]))
    assert all(torch.equal(b, statistics[n]) for n, b in agent.named_buffers() if "normalize" in n)
