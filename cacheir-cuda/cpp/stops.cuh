// Where a row's answer is over: ids that end it, and how many tokens it may have.
#pragma once
#include "device.cuh"

constexpr int STOPPED = -3;  // what the host is told in place of a token of a row whose answer is over (told_steps.py)
constexpr int STOP_IDS = 8;

// Filled by the host before a run; only the kernel that goes on to the next token writes here.
struct Stops {
  int stopped;
  int left;           // tokens that may still come, 0 where nothing bounds them
  int unused[2];
  int ids[STOP_IDS];  // that end the answer; negative: none
};

// Held by one thread of that kernel, from before its wait: what it reads was written a whole step ago.
struct Ending {
  int4 head, ids[STOP_IDS / 4];
  bool over = false;  // once `told` was asked: no token follows

  __device__ __forceinline__ void read(const Stops *stops) {
    const int4 *words = (const int4 *)stops;
    head = __ldcg(words);
#pragma unroll
    for (int i = 0; i < STOP_IDS / 4; i++) ids[i] = __ldcg(words + 1 + i);
  }
  // What the host is told where the row's token is `id`; `stops` says from now on whether one follows.
  __device__ __forceinline__ int told(Stops *stops, int id) {
    over = head.x || head.y == 1;
#pragma unroll
    for (int i = 0; i < STOP_IDS / 4; i++) over |= id == ids[i].x || id == ids[i].y || id == ids[i].z || id == ids[i].w;
    if (over) stops->stopped = 1;
    else if (head.y) stops->left = head.y - 1;
    return head.x ? STOPPED : id;
  }
};
