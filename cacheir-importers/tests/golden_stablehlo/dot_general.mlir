module @golden {
  func.func public @main(%arg0: tensor<2x4x3xf32>, %arg1: tensor<2x5x3xf32>, %arg2: tensor<3x6xf32>) -> (tensor<2x4x5xf32>, tensor<2x4x6xf32>, tensor<4x2xf32>, tensor<2x4x2x5xf32>) {
    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x4x3xf32>, tensor<2x5x3xf32>) -> tensor<2x4x5xf32>
    %1 = "stablehlo.dot_general"(%arg0, %arg2) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [0]>}> : (tensor<2x4x3xf32>, tensor<3x6xf32>) -> tensor<2x4x6xf32>
    %2 = stablehlo.slice %arg0 [0:2, 0:4, 0:1] : (tensor<2x4x3xf32>) -> tensor<2x4x1xf32>
    %3 = stablehlo.reshape %2 : (tensor<2x4x1xf32>) -> tensor<2x4xf32>
    %4 = call @turn(%3) : (tensor<2x4xf32>) -> tensor<4x2xf32>
    %5 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [2] x [2] : (tensor<2x4x3xf32>, tensor<2x5x3xf32>) -> tensor<2x4x2x5xf32>
    return %0, %1, %4, %5 : tensor<2x4x5xf32>, tensor<2x4x6xf32>, tensor<4x2xf32>, tensor<2x4x2x5xf32>
  }
  func.func private @turn(%arg0: tensor<2x4xf32>) -> tensor<4x2xf32> {
    %0 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<2x4xf32>) -> tensor<4x2xf32> loc(#loc1)
    return %0 : tensor<4x2xf32> loc(callsite("f"("a.py":1:2) at fused["b", #loc]))
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc1 = loc("here"("a.py":3:4))
