// What threads do together: barriers of a CTA and of a cluster, and the operations of a warp.
#pragma once

static void barrier_settle(Cta* c, int number, int expected) {
  Barrier* b = &c->barrier[number];
  if (b->arrived == 0 || b->arrived < (expected ? expected : c->alive)) return;
  b->arrived = 0;
  ++b->generation;
}
static void barrier_arrive(Thread* t, int number, int expected) {
  ++t->cta->barrier[number].arrived;
  barrier_settle(t->cta, number, expected);
}
static void barrier_sync(Thread* t, int number, int expected, int line) {
  Barrier* b = &t->cta->barrier[number];
  for (int l = 0; l < 32; ++l) {
    const Thread* o = t->warp->lane[l];
    if (o && !o->done && o->wait == &b->generation && o->unless == b->generation && o->site != line)
      stop(line, "a warp is at two barriers at once: lane %d at PTX line %d", l, o->site);
  }
  t->site = line;
  const int generation = b->generation;
  barrier_arrive(t, number, expected);
  if (b->generation == generation) wait_until_changed(t, &b->generation, generation);
}
static void cluster_settle(Cluster* c) {
  if (c->arrived == 0 || c->arrived < c->alive) return;
  c->arrived = 0;
  ++c->phase;
}
static void cluster_arrive(Thread* t) {
  t->cluster_phase = t->cta->cluster->phase;
  ++t->cta->cluster->arrived;
  cluster_settle(t->cta->cluster);
}
static void cluster_wait(Thread* t) {
  Cluster* c = t->cta->cluster;
  if (c->phase == t->cluster_phase) wait_until_changed(t, &c->phase, t->cluster_phase);
}

// ---- what the lanes of a warp do together

enum {
  kMeet,
  kAny,
  kAll,
  kBallot,
  kUp,
  kDown,
  kButterfly,
  kIndex,
  kMatch,
  kSum,
  kLeast,
  kMost,
  kLeastSigned,
  kMostSigned,
  kAnd,
  kOr,
  kXor,
  kActive
};

static Thread* lane_of(const Warp* w, int lane, uint32_t mask) { // if it is named, and has not left
  Thread* o = mask >> lane & 1 ? w->lane[lane] : NULL;
  return o && !o->done ? o : NULL;
}

static void settle_lane(Warp* w, Thread* t, uint32_t mask) {
  const int lane = t->lane;
  uint32_t out = 0;
  int found = 0;
  if (t->op >= kUp && t->op <= kIndex) {
    const int segment = (int)(t->aux >> 8 & 31), clamp = (int)(t->aux & 31), b = (int)(t->found);
    const int most = (lane & segment) | (clamp & ~segment), least = lane & segment;
    int from = t->op == kUp          ? lane - b
               : t->op == kDown      ? lane + b
               : t->op == kButterfly ? lane ^ b
                                     : least | (b & ~segment & 31);
    found = t->op == kUp ? from >= most : from <= most;
    if (!found) from = lane;
    const Thread* source = from >= 0 ? lane_of(w, from, mask) : NULL;
    out = source ? source->value : 0xdeadbeef;
  } else {
    const Thread* first = NULL;
    for (int l = 0; l < 32; ++l) {
      const Thread* o = lane_of(w, l, mask);
      if (!o) continue;
      const uint32_t v = o->value;
      const int32_t v_signed = (int32_t)v, out_signed = (int32_t)out;
      switch (t->op) {
      case kAny:
        out |= v != 0;
        break;
      case kAll:
        out = first ? out & (v != 0) : v != 0;
        break;
      case kBallot:
        out |= (uint32_t)(v != 0) << l;
        break;
      case kMatch:
        out |= (uint32_t)(v == t->value) << l;
        break;
      case kSum:
        out += v;
        break;
      case kLeast:
        out = !first || v < out ? v : out;
        break;
      case kMost:
        out = !first || v > out ? v : out;
        break;
      case kLeastSigned:
        out = !first || v_signed < out_signed ? v : out;
        break;
      case kMostSigned:
        out = !first || v_signed > out_signed ? v : out;
        break;
      case kAnd:
        out = first ? out & v : v;
        break;
      case kOr:
        out |= v;
        break;
      case kXor:
        out ^= v;
        break;
      default:
        break;
      }
      first = o;
    }
  }
  t->out = out;
  t->found = found;
}

// Lets lanes go on, if all that their mask names have come. Those that have left are not waited for.
static int settle_lanes(Warp* w, const Thread* t) {
  const uint32_t mask = t->mask, op = t->op;
  for (int l = 0; l < 32; ++l) {
    const Thread* o = lane_of(w, l, mask);
    if (o && !(o->waiting && o->op == op && o->mask == mask)) return 0;
  }
  for (int l = 0; l < 32; ++l)
    if (lane_of(w, l, mask)) settle_lane(w, w->lane[l], mask);
  for (int l = 0; l < 32; ++l)
    if (lane_of(w, l, mask)) w->lane[l]->waiting = 0;
  return 1;
}

static uint32_t together(Thread* t, uint32_t op, uint32_t value, uint32_t b, uint32_t aux, uint32_t mask, int line) {
  Warp* w = t->warp;
  if (!(mask >> t->lane & 1)) stop(line, "lane %d is not in its own mask %#x", t->lane, mask);
  t->op = op;
  t->mask = mask;
  t->value = value;
  t->found = (int)b;
  t->aux = aux;
  t->site = line;
  t->waiting = 1;
  for (int l = 0; l < 32; ++l) {
    const Thread* o = lane_of(w, l, mask);
    if (o && o->waiting && o->op != kActive && (o->op != op || o->mask != mask) && o->mask >> t->lane & 1)
      stop(line, "lanes of a warp do different things together: lane %d with mask %#x at PTX line %d", l, o->mask,
           o->site);
  }
  if (!settle_lanes(w, t)) wait_until_changed(t, &t->waiting, 1);
  return t->out;
}

// A lane has left: others may have waited for no other.
static void lane_leaves(Warp* w) {
  for (int l = 0; l < 32; ++l) {
    const Thread* o = lane_of(w, l, ~0u);
    if (o && o->waiting && o->op != kActive) settle_lanes(w, o);
  }
}

// Lanes that are here at once: those that have come when no other lane of the warp can go on by itself.
static uint32_t active(Thread* t, int line) {
  const Warp* w = t->warp;
  t->op = kActive;
  t->site = line;
  t->waiting = 1;
  for (;;) {
    uint32_t here = 0;
    int settled = 1;
    for (int l = 0; l < 32; ++l) {
      const Thread* o = w->lane[l];
      if (!o || o->done) continue;
      const int comes = o->waiting && o->op == kActive && o->site == line;
      here |= (uint32_t)comes << l;
      settled &= comes || (o->wait && *o->wait == o->unless);
    }
    if (settled)
      for (int l = 0; l < 32; ++l)
        if (here >> l & 1) {
          w->lane[l]->out = here;
          w->lane[l]->waiting = 0;
        }
    if (!t->waiting) return t->out;
    poll(t);
  }
}
