module @golden {
  func.func public @main(%arg0: tensor<2x3xf32>) -> (tensor<6xf32>, tensor<3x2xf32>, tensor<3x4x2xf32>, tensor<4x3xf32>, tensor<1x2xf32>, tensor<4x4xf32>, tensor<3x4xi32>, tensor<2x3xf32>, tensor<3x3xf32>) {
    %0 = stablehlo.reshape %arg0 : (tensor<2x3xf32>) -> tensor<6xf32>
    %1 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %2 = stablehlo.broadcast_in_dim %arg0, dims = [2, 0] : (tensor<2x3xf32>) -> tensor<3x4x2xf32>
    %3 = stablehlo.concatenate %arg0, %arg0, dim = 0 : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
    %4 = stablehlo.slice %arg0 [1:2, 0:3:2] : (tensor<2x3xf32>) -> tensor<1x2xf32>
    %cst = stablehlo.constant dense<7.0> : tensor<f32>
    %5 = stablehlo.pad %arg0, %cst, low = [1, 0], high = [1, 1], interior = [0, 0] : (tensor<2x3xf32>, tensor<f32>) -> tensor<4x4xf32>
    %6 = stablehlo.iota dim = 1 : tensor<3x4xi32>
    %7 = stablehlo.reverse %arg0, dims = [1] : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %8 = stablehlo.pad %3, %cst, low = [-1, 0], high = [0, 0], interior = [0, 0] : (tensor<4x3xf32>, tensor<f32>) -> tensor<3x3xf32>
    return %0, %1, %2, %3, %4, %5, %6, %7, %8 : tensor<6xf32>, tensor<3x2xf32>, tensor<3x4x2xf32>, tensor<4x3xf32>, tensor<1x2xf32>, tensor<4x4xf32>, tensor<3x4xi32>, tensor<2x3xf32>, tensor<3x3xf32>
  }
}
