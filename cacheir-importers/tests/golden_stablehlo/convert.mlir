module @golden {
  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<2x3xi32>, %arg2: tensor<2x3xi32>) -> (tensor<2x3xi32>, tensor<2x3xf16>, tensor<2x3xbf16>, tensor<2x3xf32>, tensor<2x3xi1>, tensor<2x3xi32>, tensor<2x3xi32>) {
    %0 = stablehlo.convert %arg0 : (tensor<2x3xf32>) -> tensor<2x3xi32>
    %1 = stablehlo.convert %arg0 : (tensor<2x3xf32>) -> tensor<2x3xf16>
    %2 = stablehlo.convert %arg0 : (tensor<2x3xf32>) -> tensor<2x3xbf16>
    %3 = stablehlo.convert %arg1 : (tensor<2x3xi32>) -> tensor<2x3xf32>
    %4 = stablehlo.convert %arg1 : (tensor<2x3xi32>) -> tensor<2x3xi1>
    %5 = stablehlo.divide %arg1, %arg2 : tensor<2x3xi32>
    %6 = stablehlo.remainder %arg1, %arg2 : tensor<2x3xi32>
    return %0, %1, %2, %3, %4, %5, %6 : tensor<2x3xi32>, tensor<2x3xf16>, tensor<2x3xbf16>, tensor<2x3xf32>, tensor<2x3xi1>, tensor<2x3xi32>, tensor<2x3xi32>
  }
}
