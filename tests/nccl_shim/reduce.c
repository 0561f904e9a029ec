/* Reductions, rounded after each step to the type itself, as NCCL does also for the two half types. */
#include "shim.h"

#include <string.h>

__extension__ typedef _Float16 Half;
typedef struct {
    uint16_t bits;
} Brain; /* bfloat16: the upper half of a float */

static float from_brain(Brain value) {
    uint32_t bits = (uint32_t)value.bits << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static Brain to_brain(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) {
        return (Brain){.bits = (uint16_t)(bits >> 16 | 0x40)};
    }
    return (Brain){.bits = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)}; /* to the nearest, ties to even */
}

size_t type_bytes(ncclDataType_t type) {
    static const size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return (unsigned)type < ncclNumTypes ? sizes[type] : 0;
}

#define SAME(x) (x)
#define FROM_HALF(x) ((float)(x))
#define TO_HALF(x) ((Half)(x))

#define LOOP(expression)                                                                                              \
    for (size_t i = 0; i < count; i++) {                                                                              \
        expression;                                                                                                   \
    }                                                                                                                 \
    break

/* Sums and products of integers wrap around; for that they are computed without sign. */
#define REDUCE(T, WIDE, FROM, TO)                                                                                     \
    {                                                                                                                 \
        T *a = target;                                                                                                \
        const T *b = source;                                                                                          \
        switch (op) {                                                                                                 \
        case ncclProd:                                                                                                \
            LOOP(a[i] = TO((WIDE)FROM(a[i]) * (WIDE)FROM(b[i])));                                                     \
        case ncclMax:                                                                                                 \
            LOOP(a[i] = FROM(a[i]) < FROM(b[i]) ? b[i] : a[i]);                                                       \
        case ncclMin:                                                                                                 \
            LOOP(a[i] = FROM(b[i]) < FROM(a[i]) ? b[i] : a[i]);                                                       \
        default:                                                                                                      \
            LOOP(a[i] = TO((WIDE)FROM(a[i]) + (WIDE)FROM(b[i])));                                                     \
        }                                                                                                             \
        break;                                                                                                        \
    }

#define TO_INT8(x) ((int8_t)(x))
#define TO_UINT8(x) ((uint8_t)(x))
#define TO_INT32(x) ((int32_t)(x))
#define TO_INT64(x) ((int64_t)(x))

void reduce_into(void *target, const void *source, size_t count, ncclDataType_t type, ncclRedOp_t op) {
    switch (type) {
    case ncclInt8:
        REDUCE(int8_t, int32_t, SAME, TO_INT8)
    case ncclUint8:
        REDUCE(uint8_t, uint32_t, SAME, TO_UINT8)
    case ncclInt32:
        REDUCE(int32_t, uint32_t, SAME, TO_INT32)
    case ncclUint32:
        REDUCE(uint32_t, uint32_t, SAME, SAME)
    case ncclInt64:
        REDUCE(int64_t, uint64_t, SAME, TO_INT64)
    case ncclUint64:
        REDUCE(uint64_t, uint64_t, SAME, SAME)
    case ncclFloat16:
        REDUCE(Half, float, FROM_HALF, TO_HALF)
    case ncclFloat32:
        REDUCE(float, float, SAME, SAME)
    case ncclFloat64:
        REDUCE(double, double, SAME, SAME)
    case ncclBfloat16:
        REDUCE(Brain, float, from_brain, to_brain)
    case ncclNumTypes:
        break;
    }
}

#define EACH(T, expression)                                                                                           \
    {                                                                                                                 \
        T *a = target;                                                                                                \
        LOOP(a[i] = expression);                                                                                      \
    }

void average_before(void *target, size_t count, ncclDataType_t type, int ranks) {
    switch (type) {
    case ncclFloat16:
        EACH(Half, TO_HALF((float)a[i] * (float)TO_HALF(1.0F / (float)ranks)))
    case ncclBfloat16:
        EACH(Brain, to_brain(from_brain(a[i]) * from_brain(to_brain(1.0F / (float)ranks))))
    case ncclFloat32:
        EACH(float, a[i] * (1.0F / (float)ranks))
    case ncclFloat64:
        EACH(double, a[i] * (1.0 / ranks))
    default:
        break;
    }
}

void average_after(void *target, size_t count, ncclDataType_t type, int ranks) {
    switch (type) {
    case ncclInt8:
        EACH(int8_t, TO_INT8(a[i] / ranks))
    case ncclUint8:
        EACH(uint8_t, TO_UINT8(a[i] / ranks))
    case ncclInt32:
        EACH(int32_t, a[i] / ranks)
    case ncclUint32:
        EACH(uint32_t, a[i] / (uint32_t)ranks)
    case ncclInt64:
        EACH(int64_t, a[i] / ranks)
    case ncclUint64:
        EACH(uint64_t, a[i] / (uint64_t)ranks)
    default:
        break;
    }
}
