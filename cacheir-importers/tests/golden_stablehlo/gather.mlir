module @golden {
  func.func public @main(%arg0: tensor<5x3xf32>, %arg1: tensor<2x4x1xi32>, %arg2: tensor<4xi64>, %arg3: tensor<2xui8>) -> (tensor<2x4x3xf32>, tensor<5x4xf32>, tensor<3x2xf32>, tensor<1x4x3xf32>) {
    %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 3>}> : (tensor<5x3xf32>, tensor<2x4x1xi32>) -> tensor<2x4x3xf32>
    %1 = "stablehlo.gather"(%arg0, %arg2) {dimension_numbers = #stablehlo.gather<offset_dims = [0], collapsed_slice_dims = [1], start_index_map = [1], index_vector_dim = 1>, slice_sizes = dense<[5, 1]> : tensor<2xi64>} : (tensor<5x3xf32>, tensor<4xi64>) -> tensor<5x4xf32>
    %2 = "stablehlo.gather"(%arg0, %arg3) <{dimension_numbers = #stablehlo.gather<offset_dims = [0], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}> : (tensor<5x3xf32>, tensor<2xui8>) -> tensor<3x2xf32>
    %3 = "stablehlo.gather"(%arg0, %arg2) <{dimension_numbers = #stablehlo.gather<offset_dims = [0, 2], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}> : (tensor<5x3xf32>, tensor<4xi64>) -> tensor<1x4x3xf32>
    return %0, %1, %2, %3 : tensor<2x4x3xf32>, tensor<5x4xf32>, tensor<3x2xf32>, tensor<1x4x3xf32>
  }
}
